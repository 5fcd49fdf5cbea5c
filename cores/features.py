"""Feature maps of keys and queries."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def normalized_elu(x: Tensor) -> Tensor:
    """ELU + 1, divided by its sum over the last dimension, so that a key's entries are shares.

    The sum normalisation is section 4.2 of Schlag et al. 2021; 1e-5 in it is the released RL code's.
    """
    positive = F.elu(x) + 1
    return positive / (positive.sum(-1, keepdim=True) + 1e-5)
