"""The action that a policy takes."""

from __future__ import annotations

import torch
from torch import Tensor

from .sampling_rng import Rng, exponential


def sample(logits: Tensor, rng: Rng | None) -> Tensor:
    """Sample actions `[B]` from policies, logits `[B, A]`: argmax of p_i / e_i with e_i ~ Exp(1), which is
    the Gumbel-max trick without its logarithms."""
    return (logits.softmax(-1) / exponential(torch.empty_like(logits), rng)).argmax(-1)
