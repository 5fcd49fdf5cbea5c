"""The policy's and the value's head, and the action that the policy takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..cores.layer import weights_of
from ..kernels.native import dense
from .noise import Noise, exponential


def act(
    y: Tensor, policy: nn.Linear, baseline: nn.Linear, greedy: bool, noise: Noise | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return actions `[B]`, logits `[B, A]` and values `[B]` from a core's output y `[B, n]`.

    Actions are drawn from the policy, as by `draw`; the likeliest are taken if `greedy`.
    """
    weights = weights_of(policy, baseline, kinds=(nn.Linear, nn.Linear))
    if weights and dense.takes(y, weights):
        race = None if greedy else exponential(y.new_empty(len(y), policy.out_features), noise)
        return dense.heads(y, weights[:2], weights[2:], race)
    logits = policy(y)
    return logits.argmax(-1) if greedy else draw(logits, noise), logits, baseline(y).squeeze(-1)


def draw(logits: Tensor, noise: Noise | None) -> Tensor:
    """Draw actions `[B]` from policies, logits `[B, A]`: the exponential race, argmax of p_i / e_i with
    e_i ~ Exp(1)."""
    return (logits.softmax(-1) / exponential(torch.empty_like(logits), noise)).argmax(-1)
