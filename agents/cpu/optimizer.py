"""RMSProp's step in one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.native import rmsprop as native
from ..rmsprop import rmsprop_if_finite


@torch.no_grad()
def fused_rmsprop_if_finite(
    finite: Tensor,
    parameters: list[Tensor],
    gradients: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    scale: Tensor,
    alpha: float,
    eps: float,
) -> None:
    """Like `rmsprop.rmsprop_if_finite`, to which it falls back if C cannot compute it."""
    if not native.is_supported(parameters, gradients, squares):
        rmsprop_if_finite(finite, parameters, gradients, squares, steps, lr, scale, alpha, eps)
    elif finite:
        torch._foreach_add_(steps, 1)
        native.step(parameters, gradients, squares, float(lr), alpha, eps, float(scale))
