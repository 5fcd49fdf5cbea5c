"""The GRU in C for CPUs: whole unrolls, forward and backward, by `dense.c`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from . import dense
from .lstm import new_saved, recurrence


def gru(
    gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """Equals `reference.gru` to rounding."""
    inputs = (gates, weight, bias, h0)
    h, *_ = _forward(*inputs, reset, wants_gradient(*inputs))
    return h, h[-1]


def step(x: Tensor, weights: Sequence[Tensor], h0: Tensor, reset: Tensor) -> Tensor | None:
    """Compute h `[B, N]` after one step from x `[B, K]`; None if C does not support these inputs.

    `weights`: weight_ih `[3 N, K]`, weight_hh `[3 N, N]`, bias_ih, bias_hh `[3 N]`. h0 `[B, N]`, reset `[B]`.
    """
    (B, N), K = h0.shape, x.shape[-1]
    shapes = [(3 * N, K), (3 * N, N), (3 * N,), (3 * N,)]
    if (
        not dense.is_supported(x, weights)
        or [w.shape for w in weights] != shapes
        or x.shape != (B, K)
        or B == 0
    ):
        return None
    if not dense.is_supported_state(reset, h0):
        return None
    h = h0.new_empty(B, N)
    inputs = (part.contiguous() for part in (x, *weights, h0, reset))
    dense.call("gru_step", B, 3 * N * (K + N), (B, K, N), *inputs, h)
    return h


def _results(
    gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor, save: bool
) -> tuple[Tensor, ...]:
    """Allocate h `[T, B, N]` and what backward needs."""
    return h0.new_empty(len(gates), *h0.shape), *new_saved(h0, len(gates), 5, save)


def _gradients(weight: Tensor, reset: Tensor, saved_gates: Tensor, dy: Tensor | None) -> tuple[Tensor, ...]:
    """Allocate the gradients of gates and of `weight h + bias` `[T, B, 3 N]`, and of h0 `[B, N]`."""
    (T, B), N = reset.shape, weight.shape[1]
    return saved_gates.new_empty(T, B, 3 * N), saved_gates.new_empty(T, B, 3 * N), saved_gates.new_empty(B, N)


@without_autocast
def _differentiate(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    weight, reset, saved_h, saved_gates = ctx.saved_tensors
    dgates, drecurrent, dh0 = _backward(weight, reset, saved_gates, dy)
    dweight = drecurrent.flatten(0, 1).mT @ saved_h.flatten(0, 1)
    return dgates, dweight, drecurrent.sum((0, 1)), dh0, None, None


_forward, _backward = recurrence(
    "gru", "gates weight bias h0", 3, "dy?", _results, _gradients, _differentiate
)
