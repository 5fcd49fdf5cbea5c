"""results/memory-surgery/turns.py: which corridors it counts, and what it changes in them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec
from deltabeast.cores import State
from deltabeast.cores.linear_form import DeltaForm, Writes
from deltabeast.cores.provenance import Shares, fractions, linear_forms, shares
from deltabeast.launch.evaluation.altered_memory import AlteredMemory
from deltabeast.launch.evaluation.examination import Inputs
from deltabeast.launch.evaluation.memory_ops import parse_op

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
    wrong, right = {*turns.corridors(*play, right_only=False)}, {*turns.corridors(*play)}
    assert wrong - right == {(0, 5, 6, RIGHT, "other")} and right < wrong


class Played:
    """An agent, which turns left or right at random, and what it was given in all of STEPS."""

    def __init__(self, core: str) -> None:
        sizes = {"hidden_size": 8, "num_heads": 2, "ff_size": 8}
        self.agent = Agent(AgentSpec((5,), 3, core, "mlp", sizes)).eval()
        with torch.no_grad():
            self.agent.policy.weight.mul_(5)
            self.agent.policy.bias[FORWARD] = -99
        self.inputs = Inputs(
            torch.from_numpy(np.stack([seen(cue, fork) for cue, fork, *_ in STEPS])),
            torch.randn(len(STEPS)),
            torch.tensor([step[3] for step in STEPS]),
        )

    def act(self, steps: range, state: State, player: Any = None) -> tuple[Tensor, State]:
        """Policy `[A]` of the last of these steps, and the state after it."""
        for t in steps:
            with torch.inference_mode():
                given = (part[t : t + 1] for part in self.inputs[:3])
                output, state = (player or self.agent).act(*given, state, greedy=True)
        return output.policy_logits[0].softmax(-1), state

    def forms(self, begin: int, end: int, state: State, observation: Tensor | None = None) -> list[DeltaForm]:
        """What each layer does in steps begin to end - 1."""
        seen, reward, begins = (part[begin:end] for part in self.inputs[:3])
        with torch.inference_mode():
            x = self.agent.core_input(
                self.agent.trunk_features(seen if observation is None else observation), reward
            )
            found = linear_forms(self.agent.core, x.unsqueeze(1), state, begins.unsqueeze(1))
        return [form for form in found if isinstance(form, DeltaForm)]


@pytest.mark.parametrize("core", ["delta_net", "rdn"])
def test_what_is_changed(turns: ModuleType, core: str, seed: int) -> None:
    """As `undo@T` and `wipe@T` play it, and as equations on W say, step by step."""
    played = Played(core)
    agent, observation = played.agent, played.inputs.observation
    at = turns.Corridor(0, 7, 8, LEFT, "other")
    answer = turns.examine(agent, played.inputs, at, np.random.default_rng(1))
    mirrored = observation.clone()
    mirrored[7, 1:3] = mirrored[7, 1:3].flip(0)
    torch.testing.assert_close(turns.opposite(observation, at), mirrored[7:8])

    _, before = played.act(range(7), agent.initial_state(1))
    _, after = played.act(range(7, 8), before)
    own, other = (played.forms(7, 8, before, seen[7:8]) for seen in (observation, mirrored))

    def by_hand(change: Callable[[Tensor, Writes, Writes], Tensor]) -> Tensor:
        """The policy at the fork with W `[V, K]` of each layer and head changed after the cue's step."""
        weights, *rest = (part.clone() for part in after)  # [1, layers, heads, V, K]
        for layer, (mine, theirs) in enumerate(zip(own, other, strict=True)):
            for head in range(2):
                writes = (
                    Writes(*(x[0, 0, head].reshape(-1) for x in each.writes)) for each in (mine, theirs)
                )
                weights[0, layer, head] = change(weights[0, layer, head], *writes)
        return played.act(range(8, 9), (weights, *rest))[0]

    def altered(op: str) -> Tensor:
        player = AlteredMemory(agent, agent.core, parse_op(op))
        return played.act(range(9), player.initial_state(1), player)[0]

    expected = {
        "as it was": played.act(range(8, 9), after)[0],
        "undone": altered("undo@7"),
        "undone, u = 0": by_hand(lambda W, own, _: W - own.u.outer(own.k)),
        "opposite written": by_hand(lambda W, _, other: W + (other.u - W @ other.e).outer(other.k)),
        "opposite inserted": by_hand(
            lambda W, own, other: W + (other.u - W @ own.k).outer(own.k) / own.k.square().sum()
        ),
        "wiped": by_hand(lambda W, *_: 0 * W),  # RDN's last output goes on
    }
    others = [altered(f"undo@{step}") for step in range(7)]
    chance = answer.flipped["random undone"]
    expected["random undone"] = min(others, key=lambda policy: abs(float(policy[RIGHT]) - chance[1]))
    for name, policy in expected.items():
        flips, right = answer.flipped[name]
        assert right == pytest.approx(float(policy[RIGHT]), abs=1e-6), name
        assert flips == (int(policy.argmax()) == RIGHT), name
    assert answer.flipped.keys() == expected.keys()
    assert len({round(found, 5) for _, found in answer.flipped.values()}) == 7, "all are different"
    assert answer.older == "other"


def test_which_step_is_named(turns: ModuleType, seed: int) -> None:
    """Whichever step the cue is taken to be, its share is that of the layers' readings side by side."""
    played = Played("delta_net")
    for begin, fork in ((0, 8), (17, 19)):
        forms = played.forms(begin, fork + 1, played.agent.initial_state(1))
        parts = [shares(form, fork - begin) for form in forms]
        joined = Shares(*(torch.cat([getattr(part, name) for part in parts], -1) for name in Shares._fields))
        expected = fractions(joined, over_heads=True).steps[:-1, 0]
        found = [
            turns.examine(
                played.agent,
                played.inputs,
                turns.Corridor(begin, cue, fork, LEFT, "none"),
                np.random.default_rng(1),
            )
            for cue in range(begin, fork)
        ]
        assert [each.share for each in found] == pytest.approx(expected.tolist(), abs=1e-5)
        largest = int(expected.abs().argmax())
        assert [each.named for each in found] == [step == largest for step in range(fork - begin)]


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
