"""The actor-critic loss and its gradients in C."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ...kernels.native import loss as native
from ..losses import METRICS, ROUNDING, AllReduce, actor_critic, normalise_advantages
from ..masks import forbids
from ..unroll import Unroll


def eager_term(clip_ratio: float, max_kl: float, values_are_normalised: bool) -> str | None:
    """Return which of these options of `losses.actor_critic` C lacks, in words, or None."""
    terms = {
        "the ratio is clipped": clip_ratio > 0,
        "steps far from the behaviour are left out": max_kl > 0,
        "values are normalised": values_are_normalised,
    }
    return next((term for term, chosen in terms.items() if chosen), None)


def fused_actor_critic(
    logits: Tensor,
    values: Tensor,
    batch: Unroll,
    rewards: Tensor,
    *,
    clip_ratio: float = 0.0,
    value_std: Tensor | None = None,
    max_kl: float = 0.0,
    all_reduce: AllReduce | None = None,
    **costs: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Like `losses.actor_critic`, to which it falls back if C cannot compute it or an action is forbidden;
    `costs` are its `discount`, `baseline_cost`, `entropy_cost` and `vtrace_lambda`."""
    bootstrapped = rewards + batch.truncation_bootstrap
    behavior = batch.behavior_logits, batch.action, bootstrapped, batch.done, batch.forced
    discount, baseline, entropy = (costs[name] for name in ("discount", "baseline_cost", "entropy_cost"))
    settings = discount, baseline, entropy, ROUNDING, costs.get("vtrace_lambda", 1.0)
    in_c = not eager_term(clip_ratio, max_kl, value_std is not None)
    in_c = in_c and native.is_supported(logits, values, *behavior)
    if not in_c or forbids(batch.behavior_logits):
        return actor_critic(
            logits,
            values,
            batch,
            rewards,
            clip_ratio=clip_ratio,
            value_std=value_std,
            max_kl=max_kl,
            all_reduce=all_reduce,
            **costs,
        )
    normalise = all_reduce and partial(normalise_advantages, mask=~batch.forced, all_reduce=all_reduce)
    loss, metrics = native.actor_critic(logits, values, settings, normalise, *behavior)
    return loss, dict(zip(METRICS, metrics.unbind(), strict=True))
