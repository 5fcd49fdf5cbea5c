"""Actions that an environment forbids: the policy is the softmax over the others.

Their logits are FORBIDDEN, in acting and in the loss. So the logits that an actor records tell the learner
what was allowed; no separate mask is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORBIDDEN = torch.finfo(torch.float32).min
"""Finite, so that 0 log 0 is 0 in an entropy; its softmax is 0 beside any logit of a network."""


def forbid(logits: Tensor, allowed: Tensor) -> Tensor:
    """Forbid in logits `[..., A]` all but the `allowed` actions, bool of the same shape."""
    return logits.masked_fill(~allowed, FORBIDDEN)


def apply_behavior_mask(logits: Tensor, behavior_logits: Tensor) -> Tensor:
    """Forbid in `logits` the actions that are forbidden in `behavior_logits`; both `[..., A]`."""
    return torch.where(behavior_logits == FORBIDDEN, behavior_logits, logits)


def forbids(behavior_logits: Tensor) -> bool:
    """Return whether some action was forbidden."""
    return bool((behavior_logits == FORBIDDEN).any())
