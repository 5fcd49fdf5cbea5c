"""The policy's and the value's head, and the action that the policy takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..cores.layer import weights_of
from ..kernels.native import dense


def act(
    y: Tensor, policy: nn.Linear, baseline: nn.Linear, greedy: bool, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return actions `[B]`, logits `[B, A]` and values `[B]` from a core's output y `[B, n]`.

    Actions are drawn from the policy by the exponential race, argmax of p_i / e_i with e_i ~ Exp(1); the
    likeliest are taken if `greedy`.
    """
    weights = weights_of(policy, baseline, kinds=(nn.Linear, nn.Linear))
    if weights and dense.takes(y, weights):
        race = None if greedy else _race(y.new_empty(len(y), policy.out_features), generator)
        return dense.heads(y, weights[:2], weights[2:], race)
    logits = policy(y)
    scores = logits if greedy else logits.softmax(-1) / _race(torch.empty_like(logits), generator)
    return scores.argmax(-1), logits, baseline(y).squeeze(-1)


def _race(numbers: Tensor, generator: torch.Generator | None) -> Tensor:
    return numbers.exponential_(generator=generator)
