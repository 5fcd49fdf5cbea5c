"""PopArt: the loss alone sees normalised values, all else sees them as they are."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_batches import A, B, make_batch, nan_reward
from torch import nn

from deltabeast.agents import (
    Agent,
    AgentSpec,
    Learner,
    LearnerConfig,
    NonFiniteError,
    Unroll,
    WeightStore,
    load_agent,
    split,
)
from deltabeast.agents.accelerate import ALL, accelerate
from deltabeast.agents.checkpoint import export_agent, save_checkpoint
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.agents.cpu.verify import mismatches, supported_parts, verification_unroll
from deltabeast.agents.executor import dry_run
from deltabeast.agents.normaliser import moments
from deltabeast.agents.reuse import minibatches
from deltabeast.agents.value_normaliser import MIN_STD, STEP_SIZE, ValueNormaliser
from deltabeast.launch.training.flat_parameters import flatten, unflatten
from deltabeast.launch.training.ray import collective

SPEC = AgentSpec((5,), A, core="lstm", stem="mlp", normalise_values=True)


def learner_of(spec: AgentSpec = SPEC, seen: bool = True, **config: Any) -> Learner:
    """Make a learner whose statistics are those of some targets, unless it has not `seen` any."""
    learner = Learner(Agent(spec), LearnerConfig(total_steps=10_000, **config))
    if seen:
        layer_of(learner.agent).averages.copy_(torch.tensor([30.0, 30.0**2 + 20.0**2]))
    return learner


def layer_of(agent: Agent) -> ValueNormaliser:
    assert agent.value_normaliser is not None
    return agent.value_normaliser


def update(layer: ValueNormaliser, head: nn.Linear, *targets: torch.Tensor, finite: bool = True) -> None:
    several = [moments(each.unsqueeze(-1)) for each in targets]
    layer.update_stats(several, head, torch.tensor(finite))


def written_out(learner: Learner, batch: Unroll) -> dict[str, Any]:
    """Values, targets and terms of the loss from the network's outputs, step by step in float64."""
    agent, config = learner.agent, learner.config
    with torch.no_grad():
        features = agent.core_input(
            agent.trunk_features(batch.observation.flatten(0, 1)), batch.reward.flatten()
        )
        y, *_ = agent.unroll_core(features.unflatten(0, batch.done.shape), batch.state, batch.done)
        logits, predicted = agent.policy(y).double(), agent.baseline(y).squeeze(-1).double().numpy()
    mean, square = layer_of(agent).averages.tolist()
    std = (square - mean**2) ** 0.5
    values = std * predicted + mean
    action = batch.action.unsqueeze(-1)
    chosen = logits[:-1].log_softmax(-1).gather(-1, action).squeeze(-1).numpy()
    behavior = batch.behavior_logits.double().log_softmax(-1).gather(-1, action).squeeze(-1).numpy()
    forced = batch.forced.numpy()
    rho = np.where(forced, 1.0, np.exp(chosen - behavior)).clip(max=1.0)
    reward, discount = batch.reward[1:].double().numpy(), config.discount * ~batch.done[1:].numpy()
    steps = len(reward)
    vs, after = np.zeros_like(reward), values[steps]
    policy_loss = baseline_loss = 0.0
    for t in reversed(range(steps)):
        advantage = (reward[t] + discount[t] * after - values[t]) / std
        policy_loss -= (chosen[t] * rho[t] * advantage * ~forced[t]).sum()
        delta = rho[t] * (reward[t] + discount[t] * values[t + 1] - values[t])
        vs[t] = values[t] + delta + discount[t] * rho[t] * (after - values[t + 1])
        baseline_loss += 0.5 * config.baseline_cost * (((vs[t] - values[t]) / std) ** 2).sum()
        after = vs[t]
    return {
        "values": values,
        "targets": vs,
        "policy_loss": policy_loss,
        "baseline_loss": baseline_loss,
        "gradient": -config.baseline_cost * ((vs - values[:steps]) / std).sum(),
    }


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_values_stay_what_they_were_as_statistics_change(scale: float, seed: int) -> None:
    """From the first targets on, among them a single one and equal ones."""
    head, layer = nn.Linear(7, 1).double(), ValueNormaliser()
    y = torch.randn(40, 7, dtype=torch.float64)
    with torch.no_grad():
        before = layer(head(y))
        assert torch.equal(before, head(y)), "nothing was seen"
        for n in (1, 5, 300, 2):
            averages, weight = layer.averages.clone(), head.weight.clone()
            update(layer, head, scale * torch.randn(n) + 3 * scale)
            assert not torch.equal(layer.averages, averages) and not torch.equal(head.weight, weight)
            torch.testing.assert_close(layer(head(y)), before, rtol=1e-9, atol=1e-9)
            assert not torch.equal(head(y), before)


def moving_averages(updates: Sequence[np.ndarray]) -> list[float]:
    """μ and σ after these targets, one array an update (Hessel et al. 2019, section 3)."""
    first, second = 0.0, 1.0
    for targets in updates:
        first += STEP_SIZE * (targets.mean() - first)
        second += STEP_SIZE * ((targets**2).mean() - second)
    return [first, (second - first**2) ** 0.5]


def test_statistics_are_moving_averages_of_the_targets(seed: int) -> None:
    """Of several parts an update."""
    layer, head = ValueNormaliser(), nn.Linear(3, 1)
    targets = [[1e3 * age + torch.randn(n, dtype=torch.float64) for n in (4, 9)] for age in range(5)]
    for number, parts in enumerate(targets, 1):
        update(layer, head, *parts)
        expected = moving_averages([torch.cat(each).numpy() for each in targets[:number]])
        found = [float(x) for x in layer.mean_and_std()]
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_equal_targets_shrink_the_deviation_slowly_and_never_below_a_bound() -> None:
    layer, head = ValueNormaliser(), nn.Linear(3, 1)
    assert [float(x) for x in layer.mean_and_std()] == [0, 1]
    for _ in range(100):
        update(layer, head, torch.zeros(6))
    assert 0.95 < float(layer.mean_and_std()[1]) < 1
    layer.averages.copy_(torch.tensor([0.5, 0.25]))
    update(layer, head, torch.full((6,), 0.5))
    assert [float(x) for x in layer.mean_and_std()] == [0.5, MIN_STD]


@pytest.mark.parametrize("seen", [False, True])
def test_the_loss_is_of_normalised_differences(seen: bool, seed: int) -> None:
    learner = learner_of(seen=seen, discount=0.9, baseline_cost=0.4)
    batch = make_batch(learner.agent)
    expected = written_out(learner, batch)
    with torch.no_grad():
        output, *_ = learner.agent.unroll(batch.observation, batch.reward, batch.done, batch.state)
    np.testing.assert_allclose(output.baseline, expected["values"], rtol=1e-5)
    loss, metrics = learner.loss(batch)
    loss.backward()
    for name in ("policy_loss", "baseline_loss"):
        np.testing.assert_allclose(float(metrics[name]), expected[name], rtol=1e-4, err_msg=name)
    assert learner.agent.baseline.bias.grad is not None
    gradient = learner.agent.baseline.bias.grad
    np.testing.assert_allclose(
        gradient, [expected["gradient"]], rtol=1e-4, atol=1e-6
    )  # a sum, which may cancel
    mean, std = layer_of(learner.agent).mean_and_std()
    assert (metrics["value_mean"], metrics["value_std"]) == (mean, std) and (std > 1.5) == seen


@pytest.mark.parametrize("columns", [1, 4])
def test_a_learner_takes_in_the_targets_of_each_update(columns: int, seed: int) -> None:
    learner = learner_of(seen=False, learning_rate=0.01)
    targets = []
    for _ in range(4):
        batch = make_batch(learner.agent, columns=columns)
        targets.append(written_out(learner, batch)["targets"].ravel())
        learner.update(batch)
    found = [float(x) for x in layer_of(learner.agent).mean_and_std()]
    np.testing.assert_allclose(found, moving_averages(targets), rtol=1e-5, atol=1e-6)


def test_each_minibatch_counts(seed: int) -> None:
    learner = learner_of(seen=False)
    targets = []
    for part in minibatches(make_batch(learner.agent), 2, 2):
        targets.append(written_out(learner, part)["targets"].ravel())
        learner.update(part)
    found = [float(x) for x in layer_of(learner.agent).mean_and_std()]
    assert len(targets) == 4
    np.testing.assert_allclose(found, moving_averages(targets), rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_make_the_update_of_the_whole(seed: int) -> None:
    """A worker's as numbers of NumPy."""
    whole = learner_of()
    shared = copy.deepcopy(whole)
    batch = make_batch(whole.agent)
    whole.update(batch)
    parts, sums = [], [torch.zeros_like(p) for p in shared.agent.parameters()]
    for part in split(batch, B // 2):
        parts.append(shared.backward(part))
        for total, parameter in zip(sums, shared.agent.parameters(), strict=True):
            total += parameter.grad
    for total, parameter in zip(sums, shared.agent.parameters(), strict=True):
        parameter.grad = total
    shared.step([parts[0], replace(parts[1], targets=np.asarray(parts[1].targets))])
    for name, expected in whole.agent.state_dict().items():
        torch.testing.assert_close(shared.agent.state_dict()[name], expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("normalised", [(), (0, 3)])
def test_learners_of_a_cluster_tell_each_other_of_their_targets(
    normalised: tuple[int, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the moments of observations, if those are normalised."""
    learner = learner_of(replace(SPEC, normalised=normalised))
    first, second = (learner.backward(part) for part in split(make_batch(learner.agent), B // 2))
    sent: list[torch.Tensor] = []

    def all_gather(everyone: list[torch.Tensor], mine: torch.Tensor) -> None:
        sent.append(mine)
        for each, there in zip(everyone, [mine, sent[0]], strict=True):
            each.copy_(there)

    monkeypatch.setattr(collective.dist, "all_gather", all_gather)
    exchange = collective.Collective(0, 2, torch.device("cpu"))._exchange
    exchange(second)
    for found, expected in zip(exchange(first), (first, second), strict=True):
        assert found.num_steps == expected.num_steps and (found.moments is None) == (not normalised)
        for name in ("moments", "targets"):
            if getattr(expected, name) is not None:
                assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_what_is_not_finite_or_a_dry_run_changes_nothing(seed: int) -> None:
    learner = learner_of()
    before = copy.deepcopy(learner.agent.state_dict())
    with pytest.raises(NonFiniteError):
        learner.update(nan_reward(make_batch(learner.agent)))
    with dry_run(learner):
        learner.update(make_batch(learner.agent))
    update(layer_of(learner.agent), learner.agent.baseline, torch.tensor([torch.nan]), finite=False)
    for name, weight in learner.agent.state_dict().items():
        assert torch.equal(weight, before[name]), name


def test_c_acts_with_true_values_and_leaves_the_loss_to_pytorch(seed: int) -> None:
    learner = learner_of()
    agent, batch = learner.agent, make_batch(learner.agent)
    parts, notes = supported_parts(ALL, learner)
    assert {*ALL} - {*parts} == {"loss"}
    assert notes == ["loss: the eager code runs, since values are normalised"]
    learner.agent.value_normaliser, normaliser = None, agent.value_normaliser
    assert supported_parts(ALL, learner) == ([*ALL], [])
    for option, term in {"clip_ratio": "the ratio is clipped", "replay_max_kl": "far from"}.items():
        learner.config, config = replace(learner.config, **{option: 0.2}), learner.config
        (note,) = supported_parts(ALL, learner)[1]
        learner.config = config
        assert note.startswith("loss: the eager code runs") and term in note
    learner.agent.value_normaliser = normaliser
    assert not mismatches(
        learner, verification_unroll(agent, batch.observation[0]), parts, FastAgent(agent).cache_spec
    )
    given = batch.observation[0], batch.reward[0], batch.done[0], batch.state
    with torch.no_grad():
        fast, plain = (each.act(*given, greedy=True)[0] for each in (FastAgent(agent), agent))
    torch.testing.assert_close(fast.baseline, plain.baseline, rtol=1e-5, atol=1e-4)
    assert plain.baseline.abs().max() > 5
    expected = learner.loss(batch)[1]
    accelerate(learner)
    for name, value in learner.loss(batch)[1].items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-4, msg=name)


def test_statistics_go_wherever_weights_go(tmp_path: Path, seed: int) -> None:
    learner = learner_of()
    learner.update(make_batch(learner.agent))
    expected = layer_of(learner.agent).averages
    pulled, sent = Agent(SPEC), Agent(SPEC)
    WeightStore(learner.agent).pull(pulled)
    unflatten(sent, flatten(learner.agent))
    save_checkpoint(tmp_path / "run", 1, learner.agent, {"steps": 1})
    export_agent(tmp_path / "half", 1, learner.agent, half=True)
    for agent in (pulled, sent, load_agent(tmp_path / "run"), load_agent(tmp_path / "half")):
        assert torch.equal(layer_of(agent).averages, expected), "bit for bit"


def test_other_agents_have_none_and_learn_as_before(seed: int) -> None:
    torch.manual_seed(seed)
    agent = Agent(replace(SPEC, normalise_values=False))
    torch.manual_seed(seed)
    other = Agent(SPEC)
    assert {*other.state_dict()} - {*agent.state_dict()} == {"value_normaliser.averages"}
    for name, weight in agent.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name
    learner = Learner(agent, LearnerConfig(total_steps=10_000))
    part = learner.backward(make_batch(agent))
    assert part.targets is None and not {"value_mean", "value_std", "target_moments"} & {*part.metrics}
