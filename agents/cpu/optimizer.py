"""The optimizers' steps in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...kernels.native import optimizers as native
from ..adam import adam_if_finite
from ..rmsprop import rmsprop_if_finite


def _fused(eager: Callable[..., None], in_c: Callable[..., None]) -> Callable[..., None]:
    """Return what takes the arguments of `eager`, to which it falls back if C cannot compute it."""

    @torch.no_grad()
    def step_if_finite(finite: Tensor, parameters: list[Tensor], gradients: list[Tensor], *rest: Any) -> None:
        *moments, steps, lr, scale, decay, eps = rest
        if not native.is_supported(parameters, gradients, *moments):
            eager(finite, parameters, gradients, *rest)
        elif finite:
            torch._foreach_add_(steps, 1)
            in_c(parameters, gradients, *moments, steps, float(lr), decay, eps, float(scale))

    return step_if_finite


def _rmsprop(*arguments: Any) -> None:
    parameters, gradients, squares, _, *settings = arguments
    native.rmsprop(parameters, gradients, squares, *settings)


def _adam(*arguments: Any) -> None:
    parameters, gradients, means, squares, steps, *settings = arguments
    native.adam(parameters, gradients, means, squares, [int(t) for t in steps], *settings)


fused_rmsprop_if_finite = _fused(rmsprop_if_finite, _rmsprop)
fused_adam_if_finite = _fused(adam_if_finite, _adam)
