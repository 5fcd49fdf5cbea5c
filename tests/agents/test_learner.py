"""The learner against a float64 transcription of the published loss and update."""

from __future__ import annotations

import copy
import statistics
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from random_batches import B, T, make_batch, make_learner
from torch import Tensor

from deltabeast.agents import Agent, Bptt, Learner, NonFiniteError, join, split


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_loss_is_the_published_one(seed: int) -> None:
    """Sums over time and batch; rewards clamped; forced steps have ratio 1 and teach the value alone."""
    learner = make_learner(entropy_cost=0.03, baseline_cost=0.4, discount=0.9)
    batch = make_batch(learner.agent)
    loss, metrics = learner.loss(batch)
    with torch.no_grad():
        output, *_ = learner.agent.unroll(batch.observation, batch.reward, batch.done, batch.state)
    logits, values = output.policy_logits.double().numpy(), output.baseline.double().numpy()
    action, forced = batch.action.numpy()[..., None], batch.forced.numpy()
    target = log_softmax(logits[:-1])
    chosen = np.take_along_axis(target, action, -1)[..., 0]
    behavior = np.take_along_axis(log_softmax(batch.behavior_logits.double().numpy()), action, -1)[..., 0]
    rho = np.where(forced, 1.0, np.exp(chosen - behavior)).clip(max=1.0)
    reward = batch.reward[1:].double().numpy().clip(-1, 1)
    discount = 0.9 * ~batch.done[1:].numpy()
    vs, next_vs = np.zeros((T, B)), values[T]
    for t in reversed(range(T)):
        delta = rho[t] * (reward[t] + discount[t] * values[t + 1] - values[t])
        vs[t] = values[t] + delta + discount[t] * rho[t] * (next_vs - values[t + 1])
        next_vs = vs[t]
    advantage = rho * (reward + discount * np.concatenate([vs[1:], values[T:]]) - values[:T])
    policy_loss = -(chosen * advantage * ~forced).sum()
    baseline = 0.4 * 0.5 * ((vs - values[:T]) ** 2).sum()
    negative_entropy = (np.exp(target) * target).sum(-1)
    expected = policy_loss + baseline + 0.03 * (negative_entropy * ~forced).sum()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(metrics["baseline_loss"], baseline, rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], -negative_entropy.mean(), rtol=1e-4)


def test_targets_are_constants_of_the_gradient(seed: int) -> None:
    """The value head's gradient is that of a regression on fixed targets, not of the bootstrap."""
    learner = make_learner("feedforward", baseline_cost=1.0, entropy_cost=0.0)
    batch = make_batch(learner.agent, forced_share=1.1)
    loss, _ = learner.loss(batch)
    loss.backward()
    with torch.no_grad():
        output, *_ = learner.agent.unroll(batch.observation, batch.reward, batch.done, batch.state)
    values = output.baseline
    discounts = 0.99 * (~batch.done[1:]).float()
    target, targets = values[T], []
    for t in reversed(range(T)):
        target = batch.reward[t + 1].clamp(-1, 1) + discounts[t] * target
        targets.insert(0, target)
    expected = -(torch.stack(targets) - values[:T]).sum()
    torch.testing.assert_close(learner.agent.baseline.bias.grad, expected.reshape(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("room", [0.5, 2.0])
def test_one_update_is_rmsprop_with_clipping_and_annealing(room: float, seed: int) -> None:
    """With gradients twice as long as they may be, or half as long."""
    learner = make_learner("lstm", learning_rate=0.01)
    batch = make_batch(learner.agent)
    learner.steps = 2_500
    before = {n: p.detach().clone() for n, p in learner.agent.named_parameters()}
    loss, _ = learner.loss(batch)
    loss.backward()
    gradients = {n: p.grad.double() for n, p in learner.agent.named_parameters()}
    norm = torch.sqrt(sum((g**2).sum() for g in gradients.values()))
    learner.config = replace(learner.config, max_grad_norm=room * norm.item())
    metrics = learner.update(batch)
    for name, parameter in learner.agent.named_parameters():
        g = gradients[name] * min(room, 1)
        expected = before[name] - 0.00075 * g / ((0.01 * g**2).sqrt() + 0.01)
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-3, atol=1e-6, msg=name)
    assert metrics["learning_rate"] == pytest.approx(0.00075)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert learner.steps == 2_500 + T * B and learner.version == 1


def test_the_learning_rate_falls_to_zero_and_stays_there() -> None:
    learner = make_learner(learning_rate=0.1)
    learner.version = 10_000
    rates = []
    for steps in (0, 5_000, 10_000, 20_000):
        learner.steps = steps
        rates.append(learner.learning_rate())
    assert rates == pytest.approx([0.1, 0.05, 0.0, 0.0])


def test_the_first_steps_are_no_longer_than_the_later_ones(seed: int) -> None:
    """With one and the same gradient, RMSProp without its bias would begin ten times too fast."""
    learner = make_learner("feedforward", learning_rate=0.001, max_grad_norm=1e9, rmsprop_eps=1e-12)
    for parameter in learner.agent.parameters():
        parameter.register_hook(lambda grad: torch.full_like(grad, 0.3))
    batch = make_batch(learner.agent)
    steps = []
    for _ in range(3):
        before = learner.agent.policy.bias.detach().clone()
        learner.update(batch)
        learner.steps = 0
        steps.append((before - learner.agent.policy.bias.detach()).mean().item())
    assert steps == pytest.approx([0.001] * 3, rel=1e-3)


def test_policy_lag_counts_updates(seed: int) -> None:
    learner = make_learner()
    lags = [learner.update(make_batch(learner.agent))["policy_lag"] for _ in range(3)]
    assert lags == [0, 1, 2]


def test_the_share_of_forced_steps_is_a_metric(seed: int) -> None:
    learner = make_learner()
    batch = make_batch(learner.agent)
    batch.forced.zero_()
    batch.forced[0] = True
    assert learner.update(batch)["forced_share"] == pytest.approx(1 / len(batch.forced))


@pytest.mark.parametrize("bptt", ["full", "per_step"])
def test_a_cores_own_statistics_are_metrics(bptt: Bptt, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of an unroll or, where gradients are cut, of its last step."""
    learner = make_learner("delta_net", bptt=bptt)
    core, batch = learner.agent.core, make_batch(learner.agent)
    unroll = core.unroll_with_stats

    def measured(x: Tensor, *rest: Any) -> Any:
        y, state, _ = unroll(x, *rest)
        return y, state, {"steps_seen": torch.tensor(float(len(x))), "last": x[-1].detach().mean()}

    monkeypatch.setattr(core, "unroll_with_stats", measured)
    features = learner.agent.trunk_features(batch.observation[-1])
    x = learner.agent.core_input(features, batch.reward[-1])
    metrics = learner.update(batch)
    assert metrics["steps_seen"] == (T + 1 if bptt == "full" else 1)
    assert metrics["last"] == pytest.approx(float(x.detach().mean()), rel=1e-4, abs=1e-6)
    assert "write_strength" not in metrics


def test_fresh_data_is_on_policy(seed: int) -> None:
    learner = make_learner("rdn", bptt="full")
    batch = make_batch(learner.agent, forced_share=0.0)
    with torch.no_grad():
        output, *_ = learner.agent.unroll(batch.observation, batch.reward, batch.done, batch.state)
    batch.behavior_logits.copy_(output.policy_logits[:-1])
    assert learner.update(batch)["log_rho_abs_max"] < 1e-5
    assert learner.update(batch)["log_rho_abs_max"] > 1e-5


@pytest.mark.parametrize(("field", "name"), [("reward", "rewards"), ("behavior_logits", "behaviour logits")])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nonfinite_input_is_named_and_changes_nothing(
    field: str, name: str, poison: float, seed: int
) -> None:
    learner = make_learner()
    batch = make_batch(learner.agent, forced_share=0.0)
    getattr(batch, field)[2, 1] = poison
    before = [p.detach().clone() for p in learner.agent.parameters()]
    try:
        learner.update(batch)
    except NonFiniteError as error:
        assert name in str(error)  # noqa: PT017 - an infinite reward is clamped and harmless
        assert all(torch.equal(a, b) for a, b in zip(before, learner.agent.parameters(), strict=True))
        assert learner.version == 0
    else:
        assert field == "reward" and poison == float("inf")


def test_a_nonfinite_weight_is_named(seed: int) -> None:
    learner = make_learner()
    with torch.no_grad():
        learner.agent.core.weight_hh_l0[3, 1] = float("nan")
    with pytest.raises(NonFiniteError, match="weight_hh_l0"):
        learner.update(make_batch(learner.agent))


def test_a_nonfinite_gradient_is_named(seed: int) -> None:
    learner = make_learner()
    learner.agent.policy.weight.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(NonFiniteError, match=r"gradient of policy\.weight"):
        learner.update(make_batch(learner.agent))


def test_state_dict_resumes_the_optimizer(seed: int) -> None:
    one = make_learner()
    two = Learner(Agent(one.agent.spec), one.config)
    batches = [make_batch(one.agent) for _ in range(3)]
    one.update(batches[0])
    two.agent.load_state_dict(one.agent.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for batch in batches[1:]:
        one.update(batch)
        two.update(batch)
    for a, b in zip(one.agent.parameters(), two.agent.parameters(), strict=True):
        assert torch.equal(a, b)
    assert (one.steps, one.version) == (two.steps, two.version)


def test_split_and_join_are_inverse_and_lose_no_episode(seed: int) -> None:
    agent = make_learner("rdn").agent
    whole = make_batch(agent, columns=6)
    parts = split(whole, 2)
    assert [part.num_envs for part in parts] == [2, 2, 2]
    again = join(parts)
    for a, b in zip(whole.tensors(), again.tensors(), strict=True):
        assert torch.equal(a, b)
    assert again.episodes == whole.episodes
    for field in fields(whole):
        value, part = getattr(whole, field.name), getattr(parts[1], field.name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(part, value[:, 2:4]), field.name
    assert all(torch.equal(part, value[2:4]) for part, value in zip(parts[1].state, whole.state, strict=True))


def test_an_update_may_be_shared_out(seed: int) -> None:
    """The gradients of columns add up to those of the batch, and their metrics to its metrics."""
    whole = make_learner("rdn", learning_rate=0.01)
    shared = copy.deepcopy(whole)
    batch = make_batch(whole.agent, columns=6)
    expected = whole.update(batch)
    parts, sums = [], [torch.zeros_like(p) for p in shared.agent.parameters()]
    for columns in split(batch, 2):
        parts.append(shared.backward(columns))
        for total, parameter in zip(sums, shared.agent.parameters(), strict=True):
            total += parameter.grad
    for total, parameter in zip(sums, shared.agent.parameters(), strict=True):
        parameter.grad = total
    metrics = shared.step(parts)
    assert metrics.keys() == expected.keys() and (shared.steps, shared.version) == (T * 6, 1)
    for name, value in expected.items():
        if name == "effective_sample_share":  # of each part, on average
            value = statistics.fmean(part.metrics[name] for part in parts)
        assert metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for p, q in zip(shared.agent.parameters(), whole.agent.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
    assert any(
        parts[0].metrics[name] != parts[1].metrics[name] for name in expected if name in parts[0].metrics
    )
