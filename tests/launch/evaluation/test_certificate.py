"""What a certificate says of a memory, against loops over single steps; planted faults are in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec
from deltabeast.cores.provenance import linear_forms
from deltabeast.cores.reading_age import reading_ages
from deltabeast.cores.surgery import replace_memory
from deltabeast.launch.evaluation.answers import Recovery, lines
from deltabeast.launch.evaluation.certificate import Certificate, _following, _steps_until, certify, recovery
from deltabeast.launch.evaluation.examination import Inputs, examine
from deltabeast.launch.evaluation.returns import Difference

N, A = 46, 4
SIZES = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "ff_size": 8}


def agent_of(core: str) -> Agent:
    options: dict[str, Any] = {"lstm": {"hidden_size": 8}, "feedforward": {}}.get(core, SIZES)
    return Agent(AgentSpec((5,), A, core=core, stem="mlp", core_options=options)).eval()


def inputs_of(begins: tuple[int, ...] = (0, 1, 20, 45), steps: int = N) -> Inputs:
    first = torch.zeros(steps, dtype=torch.bool)
    first[list(begins)] = True
    allowed = torch.rand(steps, A) < 0.7
    allowed[:, 1] = True
    return Inputs(torch.randn(steps, 5), torch.randn(steps), first, allowed)


def certified(agent: Agent, inputs: Inputs, cost: Difference | None, pairs: int) -> Certificate:
    return certify(agent, examine(agent, inputs), cost, pairs)


def policies(agent: Agent, y: Tensor, allowed: Tensor) -> Tensor:
    return agent.heads(y)[0].masked_fill(~allowed, -torch.inf).double().softmax(-1)


def kl(p: Tensor, q: Tensor) -> float:
    return sum(float(a * (a / b).log()) for a, b in zip(p.flatten(), q.flatten(), strict=True) if a > 0)


@torch.no_grad()
def written_out(agent: Agent, inputs: Inputs, left: int, most: int) -> list[list[float]]:
    """KL(π ‖ π with the memory of a random step), of each moment until its episode ends, step by step."""
    x, begins, steps = agent.core_inputs(*inputs[:2]), inputs.begins.tolist(), len(inputs.begins)
    assert inputs.allowed is not None
    states, state, no_reset = [], agent.initial_state(1), torch.tensor([False])
    for t in range(steps):
        _, state = agent.core.step(x[t : t + 1], state, inputs.begins[t : t + 1])
        states.append(state)
    ends = [next((s for s in range(t + 1, steps) if begins[s]), steps) for t in range(steps)]
    candidates = [t for t in range(steps) if ends[t] - t - 1 >= left]
    moments = sorted({candidates[i * len(candidates) // 20] for i in range(20)})
    others = np.random.default_rng(0).integers(steps, size=len(moments))
    curves = []
    for t, other in zip(moments, others, strict=True):
        pair = [states[t], replace_memory(agent.core, states[t], states[other], torch.tensor([True]))]
        curve = []
        for s in range(t + 1, min(ends[t], t + 1 + most)):
            both = []
            for n in (0, 1):
                y, pair[n] = agent.core.step(x[s : s + 1], pair[n], no_reset)
                both.append(policies(agent, y, inputs.allowed[s]))
            curve.append(kl(*both))
        curves.append(curve)
    return curves


@pytest.mark.parametrize(
    ("core", "begins", "steps"),
    [("rdn", (0, 1, 20, 45), N), ("lstm", (0, 7), N), ("lstm", (0, 9), 240), ("transformer", (0,), N)],
)
def test_recovery_is_that_of_single_steps(core: str, begins: tuple[int, ...], steps: int, seed: int) -> None:
    agent, inputs = agent_of(core), inputs_of(begins, steps)
    curves = [curve for curve in written_out(agent, inputs, 10, 200) if max(curve) >= 1e-6]
    found = recovery(agent, agent.core_inputs(*inputs[:2]), inputs)
    assert found is not None
    assert found.kl == pytest.approx(sum(map(max, curves)) / len(curves), rel=1e-3)
    assert len(found.steps) == len(curves) > 10
    for n, curve in zip(found.steps, curves, strict=True):
        ratio = [value / max(curve) for value in curve]
        if all(abs(each - 0.1) > 1e-3 for each in ratio):  # else rounding decides
            after = next((i for i in range(len(curve)) if all(each <= 0.1 for each in ratio[i:])), None)
            assert n == after


def test_nothing_to_recover_from(seed: int) -> None:
    """Of a policy that the memory does not change, but for rounding."""
    agent, inputs = agent_of("lstm"), inputs_of()
    with torch.no_grad():
        agent.policy.weight.fill_(1e-9)
    found = certified(agent, inputs, None, 0)
    assert found.recovery == Recovery([], 0.0)
    assert dict(lines(found.as_json()))["recovers"].startswith("nothing to recover from")
    assert recovery(agent, agent.core_inputs(*inputs[:2]), inputs_of(tuple(range(0, N, 10)))) is None


def test_steps_until_it_stays_below_a_tenth() -> None:
    assert _steps_until([1.0, 0.2, 0.05, 0.11, 0.1, 0.0]) == 4
    assert _steps_until([0.05, 1.0, 0.2]) is None
    assert _steps_until([1.0, 0.0]) == 1


def test_steps_that_follow_are_of_the_episode_and_at_most_200() -> None:
    begins = [True, *[False] * 299, True, False]
    assert _following(begins, 3) == [*range(4, 204)]
    assert _following(begins, 290) == [*range(291, 300)]
    assert _following(begins, 299) == [] and _following(begins, 300) == [301]


def test_recoveries_are_counted_before_their_median() -> None:
    def said(*steps: int | None) -> str:
        found = replace(certificate(None), recovery=Recovery([*steps], 0.25))
        return dict(lines(found.as_json()))["recovers"]

    within = "recovered within the episode and 200 steps"
    after = "after another moment's memory is put in (largest KL 0.25 nats)"
    assert said(3, None, 1) == f"2 of 3 moments {within}; median of all: 3 steps {after}"
    assert said(1) == f"1 of 1 moment {within}; median of all: 1 step {after}"
    assert said(3, None, None) == f"1 of 3 moments {within} (largest KL 0.25 nats)"


def test_questions_are_told_as_they_are_asked(seed: int) -> None:
    told: list[str] = []
    agent = agent_of("rdn")
    certify(agent, examine(agent, inputs_of()), None, 0, told.append)
    assert [text.split()[0] for text in told] == ["does", "how", "how"]


def test_medians() -> None:
    assert Recovery([3, None, 1], 1.0).median == 3
    assert Recovery([3, None, None], 1.0).median is None
    assert Recovery([4, 2, None, 9], 1.0).median == 6.5
    assert Recovery([4, 2, None, None], 1.0).median is None
    assert Recovery([0], 0.0).median == 0


def certificate(cost: Difference | None, pairs: int = 10) -> Certificate:
    return Certificate([], cost, pairs, 0.5, None, {}, None)


def use(cost: Difference | None, pairs: int = 10) -> str:
    return dict(lines(certificate(cost, pairs).as_json()))["used"]


def test_used_is_what_costs_return() -> None:
    assert certificate(Difference(-1.0, (-2.0, -0.1))).used is True
    assert certificate(Difference(-1.0, (-2.0, 0.1))).used is False
    assert certificate(Difference(1.0, (0.5, 1.5))).used is False
    assert certificate(Difference(-1.0, None)).used is None
    assert certificate(None).used is None
    assert certificate(Difference(-1.0, (-2.0, -0.1)), 9).used is None
    assert use(Difference(-1.0, (-2.0, -0.1))) == (
        "yes: with the memory wiped at each step an episode's return changes by -1 (-2 to -0.1; 10 pairs; KL "
        "of the policy 0.5 nats a step)"
    )
    assert use(Difference(-1.0, (-2.0, 0.1))).startswith("not shown: with the memory wiped")
    assert use(Difference(0.0, (0.0, 0.0))).startswith("no: with the memory wiped")
    assert use(Difference(-1.0, (-2.0, -0.1)), 9).startswith("unknown: 9 pairs of episodes; at least 10 say")
    assert use(None).startswith("unknown: an episode of either")


def test_a_sound_agent(seed: int) -> None:
    agent, inputs = agent_of("rdn"), inputs_of()
    found = certified(agent, inputs, None, 0)
    assert found.correct
    x = agent.core_inputs(*inputs[:2]).unsqueeze(1)
    with torch.no_grad():
        forms = linear_forms(agent.core, x, agent.initial_state(1), inputs.begins.unsqueeze(1))
    by_age = reading_ages([form for form in forms if form is not None])
    assert found.read_age == int((by_age.cumsum(0) < 0.5).sum())
    assert found.read_beyond == {10: pytest.approx(float(by_age[11:].sum()))}
    with torch.no_grad():
        wiped, _ = agent.core.step(x[:, 0], agent.initial_state(N), torch.ones(N, dtype=torch.bool))
        y, _ = agent.core.unroll(x, agent.initial_state(1), inputs.begins.unsqueeze(1))
        assert inputs.allowed is not None
        p, q = (policies(agent, each, inputs.allowed) for each in (y[:, 0], wiped))
    assert found.kl_wiped == pytest.approx(kl(p, q) / N, rel=1e-3)
    said = dict(lines(found.as_json()))
    assert list(said) == ["correct", "used", "reads", "recovers"] and said["correct"] == "yes"


def test_an_agent_without_memory_is_correct_and_unused(seed: int) -> None:
    agent = agent_of("feedforward")
    found = certified(agent, inputs_of(), Difference(0.0, (0.0, 0.0)), 10)
    assert (found.correct, found.used, found.read_age, found.recovery) == (True, False, None, None)
    assert found.kl_wiped == pytest.approx(0, abs=1e-6)


def test_a_planted_fault_is_named(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of("delta_net")
    step = agent.core.step

    def without_resets(x: Tensor, state: Any, reset: Tensor) -> Any:
        return step(x, state, torch.zeros_like(reset))

    monkeypatch.setattr(agent.core, "step", without_resets)
    found = certified(agent, inputs_of(), None, 0)
    assert not found.correct
    assert dict(lines(found.as_json()))["correct"].startswith(
        "no: a row's steps differ from those of its episodes"
    )


def test_a_policy_that_is_not_finite(seed: int) -> None:
    agent = agent_of("rdn")
    with torch.no_grad():
        agent.policy.weight[0, 0] = torch.nan
    found = certified(agent, inputs_of(), None, 0)
    assert found.violations == ["the agent's policy is not finite"]
    assert (found.kl_wiped, found.recovery) == (None, None)
    json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_play(steps: int, seed: int) -> None:
    inputs = Inputs(*(each[:steps] for each in inputs_of((0,)) if each is not None))
    found = certified(agent_of("rdn"), inputs, None, 0)
    assert found.correct and found.recovery is None
    assert dict(lines(found.as_json()))["reads"] in (
        f"{n} step{'s' * (n != 1)} back (median of what is read)" for n in range(steps)
    )
