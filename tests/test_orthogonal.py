"""results/memory-surgery/orthogonal.py: what it measures of a corridor, and under which keys it writes."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec
from deltabeast.cores.linear_form import DeltaForm
from deltabeast.cores.provenance import linear_forms
from deltabeast.launch.evaluation.examination import Inputs

FORWARD, LEFT, RIGHT = range(3)
CUE, FORK = 2, 6


@pytest.fixture
def orthogonal(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "results" / "memory-surgery"))
    return importlib.import_module("orthogonal")


def agent_and_inputs(core: str) -> tuple[Agent, Inputs]:
    """An agent that turns at random, and two cues, in steps 0 and CUE, and the fork."""
    agent = Agent(AgentSpec((5,), 3, core, "mlp", {"hidden_size": 8, "num_heads": 2, "ff_size": 8})).eval()
    with torch.no_grad():
        agent.policy.weight.mul_(5)
        agent.policy.bias[FORWARD] = -99
    cues = [RIGHT, 0, LEFT, 0, 0, 0, 0]
    seen = torch.eye(5)[cues] + torch.eye(5)[[3 + (t == FORK) for t in range(7)]]
    return agent, Inputs(seen, torch.randn(7), torch.arange(7) == 0)


def written(agent: Agent, inputs: Inputs) -> list[tuple[Tensor, ...]]:
    """q, k, u, e of each layer and head in turn, `[T, n]` in double precision."""
    with torch.inference_mode():
        x, reset = agent.core_inputs(*inputs[:2]).unsqueeze(1), inputs.begins.unsqueeze(1)
        forms = linear_forms(agent.core, x, agent.initial_state(1), reset)
    deltas = [form.writes for form in forms if isinstance(form, DeltaForm)]
    return [
        tuple(each[:, 0, h].reshape(7, -1).double() for each in (w.q, w.k, w.u, w.e))
        for w in deltas
        for h in range(2)
    ]


def cos(x: Tensor, y: Tensor) -> float:
    return abs(float(x @ y / x.norm() / y.norm()))


@pytest.mark.parametrize("core", ["delta_net", "rdn"])
def test_survey(orthogonal: ModuleType, core: str, seed: int) -> None:
    """As W says, written step by step."""
    agent, inputs = agent_and_inputs(core)
    found = orthogonal.survey(agent, inputs, orthogonal.Corridor(0, CUE, FORK, LEFT, "other"))
    mirrored = inputs.observation.clone()
    mirrored[CUE, 1:3] = mirrored[CUE, 1:3].flip(0)
    others = written(agent, inputs._replace(observation=mirrored))

    def remains(u: Tensor, key: Tensor, writes: list[tuple[Tensor, Tensor]]) -> Tensor:
        """What the cue has written, after writes of 0 with erase key e and key k."""
        W = u.outer(key)
        for e, k in writes:
            W = W - (W @ e).outer(k)
        return W

    for n, ((q, k, u, e), (_, other, *_)) in enumerate(zip(written(agent, inputs), others, strict=True)):
        key, later = k[CUE], range(CUE + 1, FORK + 1)
        beta, W, changes = e.norm(dim=1) / k.norm(dim=1), torch.zeros(4, 4).double(), []
        for t in range(FORK + 1):
            before, W = W, W + (u[t] - W @ e[t]).outer(k[t])
            if t > CUE:
                assert ((W - before) @ key).allclose((u[t] - before @ e[t]) * (k[t] @ key))
                changes.append(float(((W - before) @ key).norm() / (before @ key).norm()))
        left = remains(u[CUE], key, [(e[t], k[t]) for t in later])
        by = {
            "left": left,
            "keys": remains(u[CUE], key, [(k[t], k[t]) for t in later]),
            "strengths": remains(u[CUE], key, [(beta[t] * key, key) for t in later]),
        }
        expected = {
            "share": float((left @ q[FORK]).norm()),
            "fraction": float((left @ q[FORK]) @ (y := W @ q[FORK]) / (y @ y)),
            "norm": float(key.norm()),
            "overlap": float(np.mean([cos(k[t], key) for t in later])),
            "opposite": cos(other[CUE], key),
            "query": cos(q[FORK], key),
            "strength": float(beta[CUE + 1 :].mean()),
            "cue_strength": float(beta[CUE]),
            "change": float(np.mean(changes)),
            **{name: float(u[CUE] @ W @ key / (u[CUE] @ u[CUE] * (key @ key))) for name, W in by.items()},
        }
        assert {name: float(x.flatten()[n]) for name, x in found._asdict().items()} == pytest.approx(
            expected, rel=1e-3, abs=1e-5
        )


def test_keys_of_a_given_overlap(orthogonal: ModuleType, seed: int) -> None:
    keys, generator = torch.randn(2, 3, 1, 8), torch.Generator().manual_seed(1)
    for overlap in (0.0, 0.5, 1.0):
        one, two = (orthogonal.with_overlap(keys, overlap, generator) for _ in range(2))
        torch.testing.assert_close(one.norm(dim=-1), keys.norm(dim=-1))
        found = torch.nn.functional.cosine_similarity(one, keys, dim=-1)
        torch.testing.assert_close(found, torch.full_like(found, overlap))
        assert torch.allclose(one, two) == (overlap == 1), "the rest is drawn anew"
    nearest = orthogonal.smallest_entry(torch.tensor([0.5, 0.125, 0.25]))
    assert nearest.tolist() == [0, 1, 0]


def test_surgery(orthogonal: ModuleType, seed: int) -> None:
    """As the agent plays with W changed by hand after the cue."""
    compared = []
    for _ in range(12):
        agent, inputs = agent_and_inputs("delta_net")
        at, head = orthogonal.Corridor(0, CUE, FORK, LEFT, "other"), (1, 0)
        found = orthogonal.surgery(agent, inputs, at, head, torch.Generator().manual_seed(1))
        own = written(agent, inputs)
        mirrored = inputs.observation.clone()
        mirrored[CUE, 1:3] = mirrored[CUE, 1:3].flip(0)
        other = written(agent, inputs._replace(observation=mirrored))

        def turned(keys: list[Tensor], agent=agent, inputs=inputs, other=other) -> bool:
            state = agent.initial_state(1)
            for t in range(FORK + 1):
                with torch.inference_mode():
                    output, state = agent.act(*(x[t : t + 1] for x in inputs[:3]), state, greedy=True)
                if t == CUE:
                    W = state[0].double()
                    for n, (key, (_, _, u, _)) in enumerate(zip(keys, other, strict=True)):
                        if key.any():
                            M = W[0, n // 2, n % 2]
                            M += (u[CUE] - M @ key).outer(key) / (key @ key)
                    state = (W.float(), *state[1:])
            return int(output.action) == RIGHT

        cue, following = ([k[t] for _, k, *_ in own] for t in (CUE, CUE + 1))
        alone = [key * (n == 2) for n, key in enumerate(cue)]
        smallest = [torch.eye(4).double()[key.argmin()] for key in cue]
        expected = {
            "overlap 1.0": turned(cue),
            "overlap 1.0, cue's head": turned(alone),
            "the next step's key": turned(following),
            "smallest entry": turned(smallest),
        }
        assert expected == {name: found[name] for name in expected}
        compared.append(tuple(expected.values()))
    assert len(set(compared)) > 2, "they do not always agree"


def test_what_is_left_of_any_step(orthogonal: ModuleType, seed: int) -> None:
    """Of a stretch in the middle of an unroll, with other writes before and behind it."""
    agent, inputs = agent_and_inputs("delta_net")
    with torch.inference_mode():
        x, reset = agent.core_inputs(*inputs[:2]).unsqueeze(1), inputs.begins.unsqueeze(1)
        form = linear_forms(agent.core, x, agent.initial_state(1), reset)[1]
    assert isinstance(form, DeltaForm)
    for first, last in ((1, 1), (1, 4), (3, 6)):
        expected = []
        for _, k, _, e in written(agent, inputs)[2:]:
            key = k[first]
            for t in range(last, first, -1):
                key = key - e[t] * (k[t] @ key)  # (I - e kᵀ) taken back to the first step
            expected.append(float(k[first] @ key / (k[first] @ k[first])))
        found = orthogonal.left(orthogonal.part(form, first, last))
        assert found.tolist() == pytest.approx(expected, abs=1e-5)
