"""The GRU in C for CPUs: whole unrolls, forward and backward, by `dense.c`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from . import dense
from .lstm import panel_shape, unsupported_units
from .operator import Operator


def unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why C cannot take these inputs, which passed `Shapes.check`; None if it can."""
    return unsupported_units(inputs[0], *inputs[1].shape)


def gru(
    gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """Equals `reference.gru` to rounding."""
    inputs = (gates, weight, bias, h0)
    h, *_ = _forward(*inputs, reset, wants_gradient(*inputs))
    return h, h[-1]


def step(x: Tensor, weights: Sequence[Tensor], h0: Tensor, reset: Tensor) -> Tensor | None:
    """Compute h `[B, N]` after one step from x `[B, K]`; None where C cannot take these inputs.

    `weights`: that of the input `[3 N, K]`, that of h `[3 N, N]`, the bias of each `[3 N]`.
    """
    (B, N), K = h0.shape, x.shape[-1]
    shapes = [(3 * N, K), (3 * N, N), (3 * N,), (3 * N,)]
    if not dense.takes(x, weights) or [w.shape for w in weights] != shapes or x.shape != (B, K) or B == 0:
        return None
    if not dense.takes_state(reset, h0):
        return None
    h = h0.new_empty(B, N)
    inputs = (part.contiguous() for part in (x, *weights, h0, reset))
    dense.call("gru_step", B, 3 * N * (K + N), (B, K, N), *inputs, h)
    return h


def _results(
    gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor, save: bool
) -> tuple[Tensor, ...]:
    """Allocate h and, empty unless `save`, h before each step and what backward needs."""
    T, (B, N) = len(gates), h0.shape
    hs, panels = (h0.new_empty(shape if save else 0) for shape in ((T, B, N), panel_shape(T, B, 5, N)))
    return h0.new_empty(T, B, N), hs, panels


def _fill(results: tuple[Tensor, ...], *inputs: Any) -> None:
    *tensors, _ = inputs
    T, B, N = results[0].shape
    dense.call("gru_forward", B, 3 * N * N * T, (T, B, N), *(x.contiguous() for x in tensors), *results)


def _gradients(weight: Tensor, reset: Tensor, panels: Tensor, dy: Tensor | None) -> tuple[Tensor, ...]:
    """Allocate those of gates, of the recurrent share of them, and of h0."""
    (T, B), N = reset.shape, weight.shape[1]
    return panels.new_empty(T, B, 3 * N), panels.new_empty(T, B, 3 * N), panels.new_empty(B, N)


def _fill_gradients(
    gradients: tuple[Tensor, ...], weight: Tensor, reset: Tensor, panels: Tensor, dy: Tensor | None
) -> None:
    (T, B), N = reset.shape, weight.shape[1]
    inputs = weight.mT.contiguous(), reset.contiguous(), panels, None if dy is None else dy.contiguous()
    dense.call("gru_backward", B, 3 * N * N * T, (T, B, N), *inputs, *gradients)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    _, weight, _, _, reset, _ = inputs
    _, hs, panels = output
    ctx.save_for_backward(weight, reset, hs, panels)


@without_autocast
def _differentiate(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    weight, reset, hs, panels = ctx.saved_tensors
    dgates, drecurrent, dh0 = _backward(weight, reset, panels, dy)
    dweight = drecurrent.flatten(0, 1).mT @ hs.flatten(0, 1)
    return dgates, dweight, drecurrent.sum((0, 1)), dh0, None, None


_backward = Operator("native_gru_backward", "weight reset panels dy?", 3, _gradients, _fill_gradients)
_forward = Operator(
    "native_gru_forward", "gates weight bias h0 reset | save", 3, _results, _fill, _save, _differentiate
)
