"""What a certificate says of a memory, against loops over single steps; planted faults are in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec
from deltabeast.cores.provenance import linear_forms
from deltabeast.cores.reading_age import reading_ages
from deltabeast.cores.surgery import replace_memory
from deltabeast.launch.evaluation.answers import Recovery, lines
from deltabeast.launch.evaluation.certificate import Certificate, _steps_until, certify, recovery
from deltabeast.launch.evaluation.returns import Difference
from deltabeast.launch.evaluation.why import Inputs, core_inputs

N, A = 46, 4
SIZES = {"hidden_size": 8, "num_heads": 2, "num_layers": 2, "ff_size": 8}


def agent_of(core: str) -> Agent:
    options: dict[str, Any] = {"lstm": {"hidden_size": 8}, "feedforward": {}}.get(core, SIZES)
    return Agent(AgentSpec((5,), A, core=core, stem="mlp", core_options=options)).eval()


def inputs_of(begins: tuple[int, ...] = (0, 1, 20, 45)) -> Inputs:
    first = torch.zeros(N, dtype=torch.bool)
    first[list(begins)] = True
    allowed = torch.rand(N, A) < 0.7
    allowed[:, 1] = True
    return Inputs(torch.randn(N, 5), torch.randn(N), first, allowed)


@torch.no_grad()
def written_out(agent: Agent, inputs: Inputs) -> list[list[float]]:
    """KL(π ‖ π with the memory of half a stretch away), of each moment until its episode ends."""
    x, begins = core_inputs(agent, inputs), inputs.begins
    assert inputs.allowed is not None
    states, state = [], agent.initial_state(1)
    for t in range(N):
        _, state = agent.core.step(x[t : t + 1], state, begins[t : t + 1])
        states.append(state)
    candidates = [t for t in range(N - 1) if not begins[t + 1]]
    curves = []
    for t in sorted({candidates[i * len(candidates) // 20] for i in range(20)}):
        other = replace_memory(agent.core, states[t], states[(t + N // 2) % N], torch.tensor([True]))
        curve, pair, s = [], [states[t], other], t + 1
        while s < N and not begins[s]:
            policies = []
            for n in (0, 1):
                y, pair[n] = agent.core.step(x[s : s + 1], pair[n], begins[s : s + 1])
                logits = agent.heads(y)[0][0].masked_fill(~inputs.allowed[s], -torch.inf)
                policies.append(logits.double().softmax(-1))
            p, q = (each[inputs.allowed[s]] for each in policies)
            curve.append(float((p * (p / q).log()).sum()))
            s += 1
        curves.append(curve)
    return curves


@pytest.mark.parametrize("core", ["rdn", "lstm", "transformer"])
def test_recovery_is_that_of_single_steps(core: str, seed: int) -> None:
    agent, inputs = agent_of(core), inputs_of()
    curves = written_out(agent, inputs)
    found = recovery(agent, core_inputs(agent, inputs), inputs)
    assert found is not None
    assert found.kl == pytest.approx(sum(map(max, curves)) / len(curves), rel=1e-3)
    assert len(found.steps) == len(curves)
    for n, curve in zip(found.steps, curves, strict=True):
        ratio = [value / max(curve) for value in curve]
        if all(abs(each - 0.1) > 1e-3 for each in ratio):  # else rounding decides
            after = next((i for i in range(len(curve)) if all(each <= 0.1 for each in ratio[i:])), None)
            assert n == after


def test_steps_until_it_stays_below_a_tenth() -> None:
    assert _steps_until([1.0, 0.2, 0.05, 0.11, 0.1, 0.0]) == 4
    assert _steps_until([0.05, 1.0, 0.2]) is None
    assert _steps_until([0.0, 0.0]) == 0
    assert _steps_until([1.0, 0.0]) == 1


def test_medians() -> None:
    assert Recovery([3, None, 1], 1.0).median == 3
    assert Recovery([3, None, None], 1.0).median is None
    assert Recovery([4, 2, None, 9], 1.0).median == 6.5
    assert Recovery([4, 2, None, None], 1.0).median is None
    assert Recovery([0], 0.0).median == 0


def certificate(cost: Difference | None) -> Certificate:
    return Certificate([], cost, 0.5, None, {}, None)


def test_used_is_what_costs_return() -> None:
    assert certificate(Difference(-1.0, (-2.0, -0.1))).used is True
    assert certificate(Difference(-1.0, (-2.0, 0.1))).used is False
    assert certificate(Difference(1.0, (0.5, 1.5))).used is False
    assert certificate(Difference(-1.0, None)).used is None
    assert certificate(None).used is None
    answers = dict(lines(certificate(Difference(-1.0, (-2.0, -0.1))).as_json()))
    assert answers["used"].startswith(
        "yes: with the memory wiped at each step an episode's return changes by -1"
    )
    assert dict(lines(certificate(None).as_json()))["used"].startswith("unknown: too few episodes")


def test_a_sound_agent(seed: int) -> None:
    agent, inputs = agent_of("rdn"), inputs_of()
    found = certify(agent, inputs, None)
    assert found.correct
    x = core_inputs(agent, inputs).unsqueeze(1)
    with torch.no_grad():
        forms = linear_forms(agent.core, x, agent.initial_state(1), inputs.begins.unsqueeze(1))
    by_age = reading_ages([form for form in forms if form is not None])
    assert found.read_age == int((by_age.cumsum(0) < 0.5).sum())
    assert found.read_beyond == {10: pytest.approx(float(by_age[11:].sum()))}
    said = dict(lines(found.as_json()))
    assert list(said) == ["correct", "used", "reads", "recovers"] and said["correct"] == "yes"


def test_an_agent_without_memory_is_correct_and_unused(seed: int) -> None:
    agent = agent_of("feedforward")
    found = certify(agent, inputs_of(), Difference(0.0, (0.0, 0.0)))
    assert (found.correct, found.used, found.read_age, found.recovery) == (True, False, None, None)
    assert found.kl_wiped == pytest.approx(0, abs=1e-6)


def test_a_planted_fault_is_named(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of("delta_net")
    step = agent.core.step

    def without_resets(x: Tensor, state: Any, reset: Tensor) -> Any:
        return step(x, state, torch.zeros_like(reset))

    monkeypatch.setattr(agent.core, "step", without_resets)
    found = certify(agent, inputs_of(), None)
    assert not found.correct
    assert dict(lines(found.as_json()))["correct"].startswith(
        "no: a row's steps differ from those of its episodes"
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_play(steps: int, seed: int) -> None:
    inputs = Inputs(*(each[:steps] for each in inputs_of((0,)) if each is not None))
    found = certify(agent_of("rdn"), inputs, None)
    assert found.correct
    assert (found.recovery is None) == (steps == 1)
