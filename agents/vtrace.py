"""V-trace: off-policy corrected value targets and advantages (Espeholt et al. 2018, Section 4)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class VTrace(NamedTuple):
    """Targets of an update, each `[T, B]`."""

    vs: Tensor
    """Value targets v_t."""
    log_rhos: Tensor
    """Logarithms of the unclipped importance ratios."""
    advantages: Tensor
    """Advantages without importance weights."""
    pg_rhos: Tensor
    """Importance weights of the policy gradient, clipped."""

    @property
    def pg_advantages(self) -> Tensor:
        """Importance-weighted advantages (Espeholt et al. 2018, section 4.2). The loss forms this product
        itself, after it has zeroed forced steps and normalised advantages."""
        return self.pg_rhos * self.advantages


def action_log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    """Compute log softmax(logits)[action]: logits `[..., A]`, actions `[...]` -> `[...]`."""
    return F.log_softmax(logits, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def vtrace_from_log_rhos(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float = 1.0,
    clip_pg_rho_threshold: float = 1.0,
    lambda_: float = 1.0,
    trusted: Tensor | None = None,
) -> VTrace:
    """V-trace targets for T steps; everything `[T, B]` except bootstrap_value `[B]` = V(x_T).

    `discounts[t]` is zero where step t ended the episode. With c_t = lambda min(1, rho_t) (remark 2):
    v_t = V_t + delta_t + gamma_t c_t (v_{t+1} - V_{t+1}),
    delta_t = min(rho_bar, rho_t) (r_t + gamma_t V_{t+1} - V_t),
    advantage_t = r_t + gamma_t (lambda v_{t+1} + (1 - lambda) V_{t+1}) - V_t,
    pg_advantage_t = min(rho_pg_bar, rho_t) advantage_t. Where all rho are 1, advantage_t is that of
    generalised advantage estimation (Schulman et al. 2016). Where `trusted`, bool, is False v_t = V_t: there
    the return is bootstrapped, for the steps before as for step t itself (Schmitt et al. 2019, LASER).
    """
    if not log_rhos.shape == discounts.shape == rewards.shape == values.shape:
        raise ValueError(
            f"log_rhos {tuple(log_rhos.shape)}, discounts {tuple(discounts.shape)}, rewards "
            f"{tuple(rewards.shape)} and values {tuple(values.shape)} must have the same shape [T, B]"
        )
    if bootstrap_value.shape != values.shape[1:]:
        raise ValueError(f"bootstrap_value {tuple(bootstrap_value.shape)} must be {tuple(values.shape[1:])}")
    rhos = log_rhos.exp()
    next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])
    deltas = rhos.clamp(max=clip_rho_threshold) * (rewards + discounts * next_values - values)
    decay = lambda_ * discounts * rhos.clamp(max=1.0)

    if trusted is not None:
        deltas, decay = deltas * trusted, decay * trusted

    correction = torch.zeros_like(bootstrap_value)
    corrections = torch.empty_like(values)
    for t in reversed(range(len(values))):
        correction = deltas[t] + decay[t] * correction
        corrections[t] = correction

    vs = values + corrections
    next_vs = torch.cat([vs[1:], bootstrap_value.unsqueeze(0)])
    advantages = rewards + discounts * (lambda_ * next_vs + (1 - lambda_) * next_values) - values
    return VTrace(vs, log_rhos, advantages, rhos.clamp(max=clip_pg_rho_threshold))


@torch.no_grad()
def vtrace_from_logits(
    behavior_policy_logits: Tensor,
    target_policy_logits: Tensor,
    actions: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float = 1.0,
    clip_pg_rho_threshold: float = 1.0,
    lambda_: float = 1.0,
) -> VTrace:
    """V-trace from the two policies' logits `[T, B, A]`: a convenience wrapper, unused in training. The other
    arguments are those of `vtrace_from_log_rhos`."""
    log_rhos = action_log_probs(target_policy_logits, actions) - action_log_probs(
        behavior_policy_logits, actions
    )
    return vtrace_from_log_rhos(
        log_rhos,
        discounts,
        rewards,
        values,
        bootstrap_value,
        clip_rho_threshold,
        clip_pg_rho_threshold,
        lambda_,
    )
