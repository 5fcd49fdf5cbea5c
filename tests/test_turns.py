"""results/memory-surgery/turns.py: which corridors it counts, and what it changes in them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec
from deltabeast.launch.evaluation.altered_memory import AlteredMemory
from deltabeast.launch.evaluation.memory_ops import parse_op
from deltabeast.launch.evaluation.why import Inputs

FORWARD, LEFT, RIGHT = range(3)


@pytest.fixture(scope="module")
def turns() -> ModuleType:
    file = Path(__file__).parents[1] / "results" / "memory-surgery" / "turns.py"
    spec = importlib.util.spec_from_file_location("turns", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["turns"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seen(cue: int, fork: bool) -> np.ndarray:
    return np.eye(5, dtype=np.float32)[[cue, 3 + fork]].sum(0)


STEPS: list[tuple[int, bool, int, bool]] = [
    # cue, fork, action, begins
    *((LEFT, False, FORWARD, True), (0, True, LEFT, False)),  # right: 0 to 1
    *((LEFT, False, FORWARD, False), (0, False, FORWARD, False), (0, True, LEFT, False)),  # right: 2 to 4
    *((RIGHT, False, FORWARD, False), (0, True, LEFT, False)),  # wrong
    *((LEFT, False, FORWARD, False), (0, True, LEFT, False)),  # right: 7 to 8
    *((RIGHT, False, LEFT, False), (RIGHT, False, FORWARD, False), (0, True, RIGHT, False)),  # saw it twice
    *((RIGHT, False, FORWARD, False), (0, True, FORWARD, False), (0, True, RIGHT, False)),  # waited
    *((LEFT, False, FORWARD, False), (0, False, FORWARD, False)),  # the episode ends
    *((RIGHT, False, FORWARD, True), (0, False, FORWARD, False), (0, True, RIGHT, False)),  # right: 17 to 19
]


def test_corridors(turns: ModuleType) -> None:
    play = [seen(cue, fork) for cue, fork, *_ in STEPS], *([step[i] for step in STEPS] for i in (3, 2))
    assert [tuple(each) for each in turns.corridors(*play)] == [
        (0, 0, 1, LEFT, "none"),
        (0, 2, 4, LEFT, "same"),
        (0, 7, 8, LEFT, "other"),
        (17, 17, 19, RIGHT, "none"),
    ]


@pytest.mark.parametrize("core", ["delta_net", "rdn"])
def test_what_is_changed(turns: ModuleType, core: str, seed: int) -> None:
    """As `undo@T` and `wipe@T` play it, step by step."""
    sizes = {"hidden_size": 8, "num_heads": 2, "ff_size": 8}
    agent = Agent(AgentSpec((5,), 3, core, "mlp", sizes)).eval()
    observation = torch.from_numpy(np.stack([seen(cue, fork) for cue, fork, *_ in STEPS]))
    begins = torch.tensor([step[3] for step in STEPS])
    inputs = Inputs(observation, torch.randn(len(STEPS)), begins)
    at = turns.Corridor(0, 7, 8, LEFT, "other")
    answer = turns.examine(agent, inputs, at, np.random.default_rng(1))

    def right(player: Any, observation: Tensor = observation) -> float:
        state = player.initial_state(1)
        for t in range(at.fork + 1):
            step = (part[t : t + 1] for part in (observation, inputs.reward, begins))
            with torch.inference_mode():
                output, state = player.act(*step, state, greedy=True)
        return float(output.policy_logits.softmax(-1)[0, RIGHT])

    def probability(op: str) -> float:
        return right(AlteredMemory(agent, agent.core, parse_op(op)))

    found = {name: p for name, (_, p) in answer.flipped.items()}
    assert found["as it was"] == pytest.approx(right(agent), abs=1e-6)
    assert found["undone"] == pytest.approx(probability("undo@7"), abs=1e-6)
    others = [probability(f"undo@{step}") for step in range(7)]
    assert min(abs(found["random undone"] - p) for p in others) < 1e-6
    assert len({round(p, 6) for p in (*found.values(), *others)}) > 8, "all are different"
    mirrored = observation.clone()
    mirrored[7, 1:3] = mirrored[7, 1:3].flip(0)
    torch.testing.assert_close(turns.opposite(observation, at), mirrored[7:8])
    assert -1 < answer.share < 1 and answer.older == "other"
    if core == "delta_net":  # RDN's last output goes on
        assert found["wiped"] == pytest.approx(probability("wipe@8"), abs=1e-6)


def test_a_table_by_hand(turns: ModuleType) -> None:
    def answer(older: str, named: bool, share: float, *changes: tuple[str, bool, float]) -> Any:
        return turns.Answer(older, named, share, {name: (flips, p) for name, flips, p in changes})

    table = turns.table(
        [
            answer("other", True, 0.5, ("undone", True, 0.75), ("random undone", False, 0.5)),
            answer("same", False, 0.1, ("undone", False, 0.25)),
            answer("other", True, 0.6, ("undone", False, 0.5), ("random undone", True, 1.0)),
        ]
    )
    assert [line.split() for line in table.splitlines()] == [
        ["cue", "named", "first", "67%", "(share", "0.40)"],
        [],
        ["turned", "P(other)", "cue", "before:", "other", "same", "none"],
        ["undone", "33%", "0.50", "1", "of", "2", "0", "of", "1", "0", "of", "0"],
        ["random", "undone", "50%", "0.75", "1", "of", "2", "0", "of", "0", "0", "of", "0"],
    ]
