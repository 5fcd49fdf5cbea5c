"""The actor-critic loss in C against PyTorch's in float64, which test_vtrace.py and test_learner.py prove."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from deltabeast.agents import Unroll
from deltabeast.agents.cpu.loss import fused_actor_critic
from deltabeast.agents.losses import AllReduce, actor_critic, identity, normalise_advantages
from deltabeast.agents.vtrace import vtrace_from_log_rhos
from deltabeast.kernels.native import loss as native

COSTS = {"discount": 0.9, "baseline_cost": 0.4, "entropy_cost": 0.03, "vtrace_lambda": 0.85}


def random_batch(T: int, B: int, A: int, done: float, forced: float) -> tuple[Tensor, Tensor, Unroll]:
    batch = Unroll(
        observation=torch.empty(T + 1, B, 0),
        reward=2 * torch.randn(T + 1, B),
        done=torch.rand(T + 1, B) < done,
        action=torch.randint(A, (T, B)),
        behavior_logits=torch.randn(T, B, A),
        forced=torch.rand(T, B) < forced,
        truncation_bootstrap=torch.where(torch.rand(T, B) < done, torch.randn(T, B), 0.0),
        state=(),
    )
    return 2 * torch.randn(T + 1, B, A), torch.randn(T + 1, B), batch


def results(
    logits: Tensor, values: Tensor, batch: Unroll, scale: float = 1.0, **costs: Any
) -> tuple[dict[str, Tensor], list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in (logits, values)]
    function = fused_actor_critic if logits.dtype is torch.float32 else actor_critic
    loss, metrics = function(*leaves, batch, batch.reward[1:], **{**COSTS, **costs})
    assert not any(x.requires_grad for x in metrics.values())
    assert torch.equal(loss, metrics["total_loss"]) or loss.isnan()
    loss.backward(torch.tensor(scale, dtype=loss.dtype))
    return metrics, [x.grad for x in leaves]


def exact(batch: Unroll) -> Unroll:
    return replace(batch, reward=batch.reward.double(), behavior_logits=batch.behavior_logits.double())


@pytest.mark.parametrize(("done", "forced"), [(0.0, 0.0), (0.3, 0.2), (1.0, 0.0), (0.3, 1.0)])
@pytest.mark.parametrize(("T", "B", "A"), [(1, 1, 2), (1, 3, 1), (7, 5, 18), (26, 16, 4)])
@pytest.mark.parametrize("normalise", [None, identity])
def test_it_is_pytorchs(
    T: int, B: int, A: int, done: float, forced: float, normalise: AllReduce | None, seed: int
) -> None:
    logits, values, batch = random_batch(T, B, A, done, forced)
    behavior = batch.behavior_logits, batch.action, batch.reward[1:], batch.done, batch.forced
    assert native.is_supported(logits, values, *behavior) or native.compiling.unsupported_reason("loss.c")
    for scale in (1.0, -0.3):
        metrics, gradients = results(logits, values, batch, scale, all_reduce=normalise)
        want, wanted = results(logits.double(), values.double(), exact(batch), scale, all_reduce=normalise)
        assert list(metrics) == list(want)
        for name, value in want.items():
            torch.testing.assert_close(metrics[name].double(), value.double(), rtol=1e-4, atol=1e-5, msg=name)
        for gradient, other in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(gradient.double(), other, rtol=1e-4, atol=1e-5)
            assert not gradient[-1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_clipped_surrogate_is_ppos(dtype: torch.dtype, seed: int) -> None:
    """Its gradient, in the logits alone, is that of -sum min(rho A, clip(rho) A), written step by step."""
    T, B, A = 9, 4, 3
    logits, values, batch = random_batch(T, B, A, 0.2, 0.2)
    logits[:T] = batch.behavior_logits + 0.3 * torch.randn(T, B, A)
    costs = {"baseline_cost": 0.0, "entropy_cost": 0.0, "clip_ratio": 0.2, "vtrace_lambda": 0.8}
    inputs = logits.to(dtype), values.to(dtype), batch if dtype is torch.float32 else exact(batch)
    metrics, (gradient, _) = results(*inputs, **costs)

    x, batch = logits.double().requires_grad_(), exact(batch)
    behavior = batch.behavior_logits.log_softmax(-1)
    discounts = COSTS["discount"] * (~batch.done[1:])
    rewards = batch.reward[1:] + batch.truncation_bootstrap
    log_rhos = torch.zeros(T, B, dtype=torch.float64)
    for t in range(T):
        for b in range(B):
            if not batch.forced[t, b]:
                a = batch.action[t, b]
                log_rhos[t, b] = x[t, b].log_softmax(-1)[a] - behavior[t, b, a]
    V = values.double()
    targets = vtrace_from_log_rhos(log_rhos.detach(), discounts, rewards, V[:-1], V[-1], lambda_=0.8)
    loss, clipped = torch.zeros((), dtype=torch.float64), 0
    for t in range(T):
        for b in range(B):
            if not batch.forced[t, b]:
                rho, advantage = log_rhos[t, b].exp(), targets.advantages[t, b]
                inside = rho.clamp(0.8, 1.2)
                clipped += int(inside * advantage < rho * advantage)
                loss = loss - torch.minimum(rho * advantage, inside * advantage)
    loss.backward()
    assert clipped, "some steps are clipped, some are not" if clipped < T * B else "all are"
    assert x.grad is not None
    torch.testing.assert_close(gradient, x.grad.to(dtype), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["policy_loss"], loss.detach().to(dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalise", [None, identity])
def test_beyond_the_trust_region_nothing_is_learned_but_entropy(
    dtype: torch.dtype, normalise: AllReduce | None, seed: int
) -> None:
    """Step by step: v = V there, the value that the step before bootstraps from; forced steps are trusted."""
    T, B, A = 9, 5, 3
    logits, values, batch = random_batch(T, B, A, 0.2, 0.2)
    logits[:T] = batch.behavior_logits + torch.randn(T, B, A)
    inputs = logits.to(dtype), values.to(dtype), batch if dtype is torch.float32 else exact(batch)
    given = {"vtrace_lambda": 0.8, "max_kl": 0.3, "all_reduce": normalise, "entropy_cost": 0.0}
    metrics, gradients = results(*inputs, **given)

    x, V, batch = logits.double().requires_grad_(), values.double().requires_grad_(), exact(batch)
    learned = torch.zeros(T, B, dtype=torch.bool)
    rhos, advantages = torch.ones(T, B).double(), torch.zeros(T, B).double()
    policy_loss = value_loss = torch.zeros((), dtype=torch.float64)
    for b in range(B):
        v = V[T, b].detach()
        for t in reversed(range(T)):
            mu, pi = (y.detach().softmax(-1) for y in (batch.behavior_logits[t, b], x[t, b]))
            forced, a = bool(batch.forced[t, b]), batch.action[t, b]
            trusted = forced or float((mu * (mu / pi).log()).sum()) <= 0.3
            learned[t, b] = trusted and not forced
            rho = 1.0 if forced else min(1.0, float(pi[a] / mu[a]))
            discount = 0.0 if batch.done[t + 1, b] else COSTS["discount"]
            reward = batch.reward[t + 1, b] + batch.truncation_bootstrap[t, b]
            here, then = V[t, b].detach(), V[t + 1, b].detach()
            rhos[t, b] = rho
            advantages[t, b] = reward + discount * (0.8 * v + 0.2 * then) - here
            delta = rho * (reward + discount * then - here)
            v = here + delta + discount * 0.8 * rho * (v - then) if trusted else here
            value_loss = value_loss + COSTS["baseline_cost"] * 0.5 * (v - V[t, b]) ** 2
    chosen = advantages[learned]
    if normalise is not None:
        advantages = (advantages - chosen.mean()) / (chosen.var(unbiased=False).sqrt() + 1e-8)
    for t, b in learned.nonzero().tolist():
        policy_loss = (
            policy_loss - rhos[t, b] * advantages[t, b] * x[t, b].log_softmax(-1)[batch.action[t, b]]
        )
    (policy_loss + value_loss).backward()
    assert 0 < learned.sum() < (~batch.forced).sum()
    for gradient, leaf in zip(gradients, (x, V), strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(gradient, leaf.grad.to(dtype), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(metrics["policy_loss"], policy_loss.detach().to(dtype), rtol=1e-4, atol=1e-4)
    assert any(
        not torch.equal(*pair)
        for pair in zip(gradients, results(*inputs, **given | {"max_kl": 0.0})[1], strict=True)
    )


def test_advantages_get_mean_0_and_deviation_1_over_chosen_steps(seed: int) -> None:
    advantages, chosen = 3 * torch.randn(7, 6) + 5, torch.rand(7, 6) < 0.8
    found = normalise_advantages(advantages, chosen, identity)
    of_chosen = advantages[chosen].double()
    want = (of_chosen - of_chosen.mean()) / of_chosen.std(unbiased=False)
    torch.testing.assert_close(found[chosen].double(), want, rtol=1e-5, atol=1e-6)
    assert not found[~chosen].any()
    nowhere, everywhere = torch.zeros_like(chosen), torch.ones_like(chosen)
    assert not normalise_advantages(advantages, nowhere, identity).any()
    assert not normalise_advantages(torch.full((7, 6), 7.7), everywhere, identity).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_importance_weights_multiply_normalised_advantages(dtype: torch.dtype, seed: int) -> None:
    """As PPO and IMPACT do; a step that the policy would never take leaves no trace in the policy's loss."""
    logits, values, batch = random_batch(7, 6, 4, 0.3, 0.2)
    batch.forced[3, 2] = False
    logits[3, 2, batch.action[3, 2]] = -40.0
    before = exact(batch) if dtype is torch.float64 else batch
    metrics, _ = results(logits.to(dtype), values.to(dtype), before, all_reduce=identity, vtrace_lambda=1.0)
    plain = exact(batch)
    log_pi, log_mu = (
        x.double().log_softmax(-1).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        for x in (logits[:-1], batch.behavior_logits)
    )
    rho = torch.where(batch.forced, 1.0, (log_pi - log_mu).exp().clamp(max=1))
    rewards, V = plain.reward[1:] + plain.truncation_bootstrap, values.double()
    discounts, carried, A = COSTS["discount"] * ~batch.done[1:], torch.zeros(6).double(), torch.zeros(7, 6)
    A = A.double()
    for t in reversed(range(7)):
        A[t] = rewards[t] + discounts[t] * (V[t + 1] + carried) - V[t]
        carried = rho[t] * (rewards[t] + discounts[t] * V[t + 1] - V[t] + discounts[t] * carried)
    of_chosen = A[~batch.forced]
    normal = (A - of_chosen.mean()) / (of_chosen.std(unbiased=False) + 1e-8)
    terms = -log_pi * rho * normal * ~batch.forced
    assert abs(terms[3, 2]) < 1e-12 < abs(log_pi[3, 2])
    torch.testing.assert_close(metrics["policy_loss"].double(), terms.sum(), rtol=1e-4, atol=1e-5)


def test_columns_of_other_processes_count_in_the_mean_and_the_deviation(seed: int) -> None:
    advantages, chosen = torch.randn(7, 6) * torch.tensor([1.0, 1, 1, 9, 9, 9]), torch.rand(7, 6) < 0.8
    sums: list[Tensor] = []
    for part in (slice(3), slice(3, 6)):
        normalise_advantages(advantages[:, part], chosen[:, part], lambda x: sums.append(x) or x)
    together = [
        normalise_advantages(advantages[:, part], chosen[:, part], lambda _: sum(sums))
        for part in (slice(3), slice(3, 6))
    ]
    torch.testing.assert_close(torch.cat(together, 1), normalise_advantages(advantages, chosen, identity))


def test_what_is_not_finite_stays_in_its_process(seed: int) -> None:
    """Else the losses of all would be, and the line would name the wrong one."""
    for poison in (torch.nan, torch.inf):
        advantages, chosen = torch.randn(7, 3), torch.ones(7, 3, dtype=torch.bool)
        advantages[2, 1] = poison
        sent: list[Tensor] = []
        own = normalise_advantages(advantages, chosen, lambda x, sent=sent: sent.append(x) or x)
        assert sent[0].isfinite().all() and not own[2, 1].isfinite()


@pytest.mark.parametrize("changed", COSTS)
def test_every_cost_counts(changed: str, seed: int) -> None:
    logits, values, batch = random_batch(6, 4, 3, 0.3, 0.2)
    before, _ = results(logits, values, batch)
    after, _ = results(logits, values, batch, **{changed: 0.5})
    want, _ = results(logits.double(), values.double(), exact(batch), **{changed: 0.5})
    torch.testing.assert_close(after["total_loss"].double(), want["total_loss"], rtol=1e-4, atol=1e-5)
    assert abs(after["total_loss"] - before["total_loss"]) > 1e-3


@pytest.mark.parametrize("where", ["logits", "values", "reward", "behavior_logits"])
def test_what_is_no_number_shows_in_the_loss(where: str, seed: int) -> None:
    logits, values, batch = random_batch(6, 4, 3, 0.0, 0.0)
    tensor = {"logits": logits, "values": values}.get(where, getattr(batch, where, None))
    tensor[2, 1] = torch.nan
    assert results(logits, values, batch)[0]["total_loss"].isnan()


def test_steps_in_any_layout_are_read(seed: int) -> None:
    logits, values, batch = random_batch(6, 4, 3, 0.3, 0.2)
    want, wanted = results(logits, values, batch)
    mixed = batch.map(lambda _, x: x.mT.contiguous().mT if x.dim() == 2 else x)
    found, gradients = results(logits, values.mT.contiguous().mT, mixed)
    assert found == want
    assert all(map(torch.equal, gradients, wanted))
