"""Backward functions that cannot be differentiated again, since they record no graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def differentiable_once(backward: Backward) -> Backward:
    """Decorate `backward` of an `autograd.Function` to raise RuntimeError under `create_graph=True`.

    PyTorch's `once_differentiable` attaches the error to the output's graph, where a later grad call may
    never traverse it, so `create_graph=True` would silently give wrong results.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph: this cannot be differentiated twice; a rule can, with backend='reference'"
            )
        return backward(ctx, *gradients)

    return wrapped
