"""The optimizers' steps in one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.native import optimizers as native
from ..adam import adam_if_finite
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
        native.rmsprop(parameters, gradients, squares, float(lr), alpha, eps, float(scale))


@torch.no_grad()
def fused_adam_if_finite(
    finite: Tensor,
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    scale: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Like `adam.adam_if_finite`, to which it falls back if C cannot compute it."""
    if not native.is_supported(parameters, gradients, means, squares):
        adam_if_finite(finite, parameters, gradients, means, squares, steps, lr, scale, betas, eps)
    elif finite:
        torch._foreach_add_(steps, 1)
        counts = [int(t) for t in steps]
        native.adam(parameters, gradients, means, squares, counts, float(lr), betas, eps, float(scale))
