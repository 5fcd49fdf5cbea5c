"""Activations that an actor computed with the learner's own weights, so that the learner runs backward only.

The `cached_` functions compute nothing forward: they return a value from the cache, which equals the formula
in their docstring to rounding, and attach that formula's gradients to their inputs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..once import Backward, differentiable_once
from ..precision import without_autocast


class ForwardCache:
    """The activations of an unroll, `[..., steps, rows, size]` each, and the weights that computed them."""

    def __init__(
        self,
        steps: int,
        rows: int,
        tensors: tuple[Tensor, ...],
        weights: Iterable[Tensor],
        prepared: Any = None,
    ) -> None:
        """`prepared`: whatever the core builds once for all steps."""
        self.after: Sequence[Sequence[Tensor]] = ()
        """the state after the newest step, by layer, if it is not among the tensors; `[rows, ...]` each"""
        self.steps, self.rows = steps, rows
        self.tensors = tensors
        self.prepared = prepared
        self.t = 0
        """number of steps so far"""
        self._weights = list(weights)
        self._versions = self._now()

    def has_room(self, rows: int) -> bool:
        """Return whether another step fits, of this many rows."""
        return rows == self.rows and self.t < self.steps

    def matches(self, x: Tensor, weights: Iterable[Tensor | None]) -> bool:
        """Return whether all steps of x `[steps, rows, ...]` are cached, computed with these weights."""
        present = [weight for weight in weights if weight is not None]
        same = all(map(operator.is_, self._weights, present)) and self._versions == self._now()
        same = same and len(present) == len(self._weights)
        return same and x.shape[:2] == (self.steps, self.rows) and self.t == self.steps

    def _now(self) -> list[int]:
        return [weight._version for weight in self._weights]


def with_gradient(
    values: Sequence[Tensor], backward: Backward, saved: Sequence[Tensor | None], *inputs: Tensor | None
) -> tuple[Tensor, ...]:
    """Return `values` as differentiable functions of `inputs`, whose gradients are
    `backward(*gradients of values, *saved)`."""
    outputs: tuple[Tensor, ...] = _WithGradient.apply(values, backward, saved, *inputs)
    return outputs


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Sequence[Tensor], backward: Backward, saved: Sequence[Tensor | None], *_: Any
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.function = backward
        ctx.save_for_backward(*saved)
        return tuple(value.detach() for value in values)

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.function(*gradients, *ctx.saved_tensors)


def cached_linear(value: Tensor, *inputs: Tensor | None) -> Tensor:
    """Return `value`, computed before as `x weightᵀ + bias`, with gradients to x, weight and bias.

    value: `[..., N]`; inputs: x `[..., K]`, weight `[N, K]`, bias `[N]` or None.
    """
    return with_gradient((value,), linear_backward, inputs, *inputs)[0]


def cached_normalized_linear(value: Tensor, x: Tensor, eps: float, *weights: Tensor | None) -> Tensor:
    """Return `value` `[..., N]`, computed before as `LN(x) weightᵀ + bias`, with gradients to x and weights.

    weights: weight and bias of LN `[K]`, weight `[N, K]`, bias `[N]` or None.
    """
    inputs = x, *weights
    return with_gradient((value,), functools.partial(_normalized_linear_backward, eps), inputs, *inputs)[0]


def cached_residual_feedforward(
    values: Sequence[Tensor], x: Tensor, y: Tensor, eps: float, *weights: Tensor | None
) -> Tensor:
    """Return the result of `dense.residual_feedforward`, computed before, with gradients to x, y and weights.

    values: z, `relu(LN(z) w1ᵀ + b1)` and the result.
    """
    z, hidden, result = values
    backward = functools.partial(_residual_feedforward_backward, eps)
    return with_gradient((result,), backward, (z, hidden, y, *weights), x, y, *weights)[0]


def _normalized_linear_backward(
    eps: float, dy: Tensor, x: Tensor, norm: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    n, *moments = torch.native_layer_norm(x, x.shape[-1:], norm, norm_bias, eps)
    dn, dw, db = linear_backward(dy, n, weight, bias)
    return *_norm_backward(dn, x, [norm, norm_bias], moments), dw, db


def _residual_feedforward_backward(
    eps: float, dresult: Tensor, z: Tensor, hidden: Tensor, y: Tensor, *weights: Any
) -> tuple[Tensor | None, ...]:
    w0, b0, *norm, w1, b1, w2, b2 = weights
    n, *moments = torch.native_layer_norm(z, z.shape[-1:], norm[0], norm[1], eps)
    dhidden, dw2, db2 = linear_backward(dresult, hidden, w2, b2)
    dhidden = torch.ops.aten.threshold_backward(dhidden, hidden, 0)
    dn, dw1, db1 = linear_backward(dhidden, n, w1, b1)
    dz, *dnorm = _norm_backward(dn, z, norm, moments)
    dz += dresult
    dy, dw0, db0 = linear_backward(dz, y, w0, b0)
    return dz, dy, dw0, db0, *dnorm, dw1, db1, dw2, db2


def linear_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of x, weight and bias, given dy `[..., N]`."""
    flat = dy.flatten(0, -2)
    dx = (flat @ weight).view(x.shape)
    return dx, flat.mT @ x.flatten(0, -2), None if bias is None else flat.sum(0)


def _norm_backward(
    dn: Tensor, x: Tensor, norm: list[Tensor], moments: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        dn, x, x.shape[-1:], *moments, *norm, [True] * 3
    )
    return grads
