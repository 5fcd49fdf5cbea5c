"""Feature maps of keys and queries."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..kernels.native import dense

EPSILON = 1e-5


def normalized_elu(x: Tensor) -> Tensor:
    """Compute ELU + 1, divided by its sum over the last dimension, so that a key's entries sum to one.

    The sum normalisation is section 4.2 of Schlag et al. 2021; the 1e-5 is from the released RL code.
    """
    if x.dim() > 1 and dense.takes(x):
        return dense.normalized_elu(x, EPSILON)
    positive = F.elu(x) + 1
    return positive / (positive.sum(-1, keepdim=True) + EPSILON)
