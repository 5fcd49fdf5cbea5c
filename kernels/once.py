"""Gradients that can be taken once: they leave no graph behind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def differentiable_once(backward: Backward) -> Backward:
    """Decorate `backward` of an `autograd.Function` to refuse `create_graph`.

    PyTorch's `once_differentiable` waits for the second derivative, and hangs its error where
    `torch.autograd.grad` never comes by: that would be wrong in silence.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph: this cannot be differentiated twice; a rule can, with backend='reference'"
            )
        return backward(ctx, *gradients)

    return wrapped
