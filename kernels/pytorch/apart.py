"""A backward pass by autograd that stays out of autocast, as the hand-written ones do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..once import differentiable_once
from ..precision import without_autocast
from .stepwise import wants_gradient

Function = Callable[..., tuple[Tensor, ...]]


def differentiated_apart(function: Function) -> Function:
    """Decorate a differentiable function of tensors and constants: its gradients have its tensors' own dtype.

    Autograd alone would let products of the backward pass be autocast if that pass is called under autocast.
    """

    @functools.wraps(function)
    def wrapped(*inputs: Any) -> tuple[Tensor, ...]:
        if not wants_gradient(*(x for x in inputs if isinstance(x, Tensor))):
            return function(*inputs)
        outputs: tuple[Tensor, ...] = _Apart.apply(function, *inputs)
        return outputs

    return wrapped


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, *inputs: Any) -> tuple[Tensor, ...]:
        ctx.inputs = [
            x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs
        ]
        with torch.enable_grad():
            ctx.outputs = function(*ctx.inputs)
        ctx.set_materialize_grads(False)
        outputs = tuple(output.detach() for output in ctx.outputs)
        pairs = zip(outputs, ctx.outputs, strict=True)
        ctx.mark_non_differentiable(*(output for output, inner in pairs if not inner.requires_grad))
        return outputs

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = [(x, g) for x, g in zip(ctx.outputs, grads, strict=True) if g is not None]
        if not pairs:
            return None, *(None for _ in ctx.inputs)
        needs_grad = [isinstance(x, Tensor) and x.requires_grad for x in ctx.inputs]
        leaves = [x for x, take in zip(ctx.inputs, needs_grad, strict=True) if take]
        outputs, gradients = zip(*pairs, strict=True)
        input_grads = iter(
            torch.autograd.grad(outputs, leaves, gradients, allow_unused=True, retain_graph=True)
        )
        return None, *(next(input_grads) if take else None for take in needs_grad)
