"""The actor-critic loss and its three terms, each summed over time and batch as published."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .masks import apply_behavior_mask
from .normaliser import moments
from .unroll import Unroll
from .vtrace import action_log_probs, vtrace_from_log_rhos

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all processes that share a batch."""

ROUNDING = 1e-3
"""A ratio counts as clipped where log rho is above this: less is rounding."""
METRICS = (
    *("total_loss", "policy_loss", "baseline_loss", "entropy"),
    *("clipped_rho_share", "log_rho_abs_max", "forced_share", "behavior_kl", "effective_sample_share"),
)
"""Names of the metrics, in the order in which `kernels/native/loss.c` writes them."""
TARGET_MOMENTS = "target_moments"
"""Name of the moments of the value targets, float64 `[3, 1]` (normaliser.py), among what a loss returns."""


def actor_critic(
    logits: Tensor,
    values: Tensor,
    batch: Unroll,
    rewards: Tensor,
    *,
    discount: float,
    baseline_cost: float,
    entropy_cost: float,
    vtrace_lambda: float = 1.0,
    clip_ratio: float = 0.0,
    value_std: Tensor | None = None,
    max_kl: float = 0.0,
    all_reduce: AllReduce | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the V-trace actor-critic loss, a scalar, and what to log of it (detached scalars).

    logits `[T + 1, B, A]` and values `[T + 1, B]` are the learner's, rewards `[T, B]` scaled and clipped.
    Losses are sums over time and batch.
    Steps whose action the environment overrode train the value function alone: those actions were not sampled
    from the policy, so rho is 1. Actions that the environment forbade have no part in the policy.
    With `max_kl`, steps at which KL(μ ‖ π) is above it, of the policy that acted and the learner's, get no
    policy gradient, and V-trace bootstraps there (`trusted` in vtrace.py): a trust region as LASER's.
    With `all_reduce` the policy's advantages are normalised to zero mean and unit standard deviation over the
    batch. It sums over the processes that share the batch. Importance weights are applied afterwards: a step
    that the policy would never take counts for nothing, as without normalisation.
    With `value_std`, the scalar σ of value_normaliser.py, the value loss is ½ Σ ((v_t - V_t) / σ)², and
    advantages are divided by σ: the scale-invariant updates of Hessel et al. (2019), which have normalised
    targets less normalised values, so that μ cancels. What is returned to log then has `TARGET_MOMENTS`, too.
    """
    # Truncated: γ V(final observation) is added to the reward, because `done` zeroes the discount.
    rewards = rewards + batch.truncation_bootstrap
    bootstrap, logits, values = values[-1].detach(), logits[:-1], values[:-1]
    logits = apply_behavior_mask(logits, batch.behavior_logits)
    not_forced = ~batch.forced
    discounts = discount * (~batch.done[1:]).float()
    behavior = action_log_probs(batch.behavior_logits, batch.action)
    log_rhos = (action_log_probs(logits, batch.action) - behavior) * not_forced
    trusted: Tensor | None = None
    learned = not_forced
    if max_kl:
        trusted = (kl_from_behavior(batch.behavior_logits, logits.detach()) <= max_kl) | batch.forced
        learned = not_forced & trusted
    targets = vtrace_from_log_rhos(
        log_rhos.detach(),
        discounts,
        rewards,
        values.detach(),
        bootstrap,
        lambda_=vtrace_lambda,
        trusted=trusted,
    )

    advantages, vs = targets.advantages * learned, targets.vs
    if value_std is not None:
        advantages, values, vs = (x / value_std for x in (advantages, values, vs))
    if all_reduce is not None:
        advantages = normalise_advantages(advantages, learned, all_reduce)
    if clip_ratio:
        policy_loss = clipped_surrogate_loss(log_rhos, advantages, clip_ratio)
    else:
        policy_loss = policy_gradient_loss(logits, batch.action, targets.pg_rhos * advantages)
    value_loss = baseline_cost * baseline_loss(values, vs)
    entropy = policy_entropy(logits)
    loss = policy_loss + value_loss - entropy_cost * (entropy * not_forced).sum()

    log_rhos, forced = log_rhos.detach(), batch.forced.float().mean()
    clipped = (log_rhos > ROUNDING).float().mean()
    ratios = clipped, log_rhos.abs().max(), forced, *off_policy_metrics(log_rhos)
    metrics = loss, policy_loss, value_loss, entropy.mean(), *ratios
    logged = {name: value.detach() for name, value in zip(METRICS, metrics, strict=True)}
    if value_std is not None:
        logged[TARGET_MOMENTS] = moments(targets.vs.unsqueeze(-1))
    return loss, logged


def kl_from_behavior(behavior_logits: Tensor, logits: Tensor) -> Tensor:
    """Compute Σ_a μ (log μ - log π) of each step: both logits `[T, B, A]` -> `[T, B]`, in nats."""
    log_mu, log_pi = F.log_softmax(behavior_logits, dim=-1), F.log_softmax(logits, dim=-1)
    return (log_mu.exp() * (log_mu - log_pi)).sum(-1)


def off_policy_metrics(log_rhos: Tensor) -> tuple[Tensor, Tensor]:
    """Return KL(behaviour ‖ policy) in nats a step and the effective sample size as a share of the steps.

    log_rhos `[T, B]`. The KL is the mean of ρ - 1 - log ρ, unbiased and never negative; the share is
    (Σ ρ)² / (N Σ ρ²): 1 where both policies are the same (Kong 1992).
    """
    rhos = log_rhos.exp()
    share = rhos.sum().square() / (rhos.numel() * rhos.square().sum())
    return (rhos - 1 - log_rhos).mean(), share


def identity(tensor: Tensor) -> Tensor:
    """No-op all-reduce of a single process."""
    return tensor


@torch.no_grad()
def normalise_advantages(advantages: Tensor, mask: Tensor, all_reduce: AllReduce) -> Tensor:
    """Return (A - mean) / (std + 1e-8) over the steps of `mask`, zero elsewhere; all `[T, B]`, mask bool.

    Per batch, as is usual (Andrychowicz et al. 2021, "What matters for on-policy deep actor-critic methods?",
    choice C67): unit-variance advantages keep the gradient's scale even in batches without reward.
    """
    A = advantages.double() * mask
    # Non-finite numbers stay in this process, which reports them; they are not all-reduced.
    sums = torch.stack([mask.sum(), A.sum(), A.square().sum()]).nan_to_num(0, 0, 0)
    count, first, second = all_reduce(sums).unbind()
    mean = first / count.clamp(min=1)
    variance = (second / count.clamp(min=1) - mean.square()).clamp(min=0)
    return ((A - mean) * mask / (variance.sqrt() + 1e-8)).to(advantages.dtype)


def policy_gradient_loss(logits: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
    """Compute -Σ log π(a_t) A_t; logits `[T, B, A]`, actions and advantages `[T, B]` -> scalar."""
    return -(action_log_probs(logits, actions) * advantages.detach()).sum()


def clipped_surrogate_loss(log_rhos: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Compute -Σ min(ρ_t A_t, clip(ρ_t, 1 - ε, 1 + ε) A_t) (Schulman et al. 2017, equation 7).

    log_rhos are log ρ and advantages A, both `[T, B]` -> scalar.
    """
    rhos, A = log_rhos.exp(), advantages.detach()
    return -torch.minimum(rhos * A, rhos.clamp(1 - epsilon, 1 + epsilon) * A).sum()


def baseline_loss(baseline: Tensor, targets: Tensor) -> Tensor:
    """Compute ½ Σ (v_t - V_t)²; both `[T, B]` -> scalar."""
    return 0.5 * (targets.detach() - baseline).square().sum()


def policy_entropy(logits: Tensor) -> Tensor:
    """Compute -Σ_a π log π of each step: logits `[T, B, A]` -> `[T, B]`, in nats."""
    log_policy = F.log_softmax(logits, dim=-1)
    return -(log_policy.exp() * log_policy).sum(-1)
