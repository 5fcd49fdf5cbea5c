"""The actor-critic loss and its gradients in C."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ...kernels.native import loss as native
from ..losses import METRICS, ROUNDING, AllReduce, actor_critic, normalise_advantages
from ..masks import forbids
from ..unroll import Unroll


def fused_actor_critic(
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
    max_kl: float = 0.0,
    all_reduce: AllReduce | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Like `losses.actor_critic`, to which it falls back if C cannot compute it or an action is forbidden."""
    bootstrapped = rewards + batch.truncation_bootstrap
    behavior = batch.behavior_logits, batch.action, bootstrapped, batch.done, batch.forced
    settings = discount, baseline_cost, entropy_cost, ROUNDING, vtrace_lambda
    in_c = not clip_ratio and not max_kl and native.is_supported(logits, values, *behavior)
    if not in_c or forbids(batch.behavior_logits):
        return actor_critic(
            logits,
            values,
            batch,
            rewards,
            discount=discount,
            baseline_cost=baseline_cost,
            entropy_cost=entropy_cost,
            vtrace_lambda=vtrace_lambda,
            clip_ratio=clip_ratio,
            max_kl=max_kl,
            all_reduce=all_reduce,
        )
    normalise = all_reduce and partial(normalise_advantages, mask=~batch.forced, all_reduce=all_reduce)
    loss, metrics = native.actor_critic(logits, values, settings, normalise, *behavior)
    return loss, dict(zip(METRICS, metrics.unbind(), strict=True))
