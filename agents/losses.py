"""The three terms of the actor-critic loss, each summed over time and batch as published."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .vtrace import action_log_probs


def policy_gradient_loss(logits: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
    """Compute -Σ log π(a_t) A_t; logits `[T, B, A]`, actions and advantages `[T, B]` -> scalar."""
    return -(action_log_probs(logits, actions) * advantages.detach()).sum()


def baseline_loss(baseline: Tensor, targets: Tensor) -> Tensor:
    """Compute ½ Σ (v_t - V_t)²; both `[T, B]` -> scalar."""
    return 0.5 * (targets.detach() - baseline).square().sum()


def policy_entropy(logits: Tensor) -> Tensor:
    """Compute -Σ_a π log π of each step: logits `[T, B, A]` -> `[T, B]`, in nats."""
    log_policy = F.log_softmax(logits, dim=-1)
    return -(log_policy.exp() * log_policy).sum(-1)
