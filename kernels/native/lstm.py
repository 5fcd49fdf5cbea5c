"""The LSTM in C for CPUs: whole unrolls, forward and backward, by `dense.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from . import compiling, dense, rules
from .acting import CoreSteps
from .forward_cache import ForwardCache, computed, linear_backward
from .operator import Differentiate, Operator


def unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why C cannot take gates `[T, B, ...]` and recurrent weights `[..., N]`; None if it can."""
    rows, units = inputs[1].shape
    if reason := rules._not_for_c(inputs[0]):
        return reason
    if rows > dense.MAX_WIDTH:
        return f"the C kernels take up to {dense.MAX_WIDTH * units // rows} units, not {units}"
    return _cannot_build()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _cannot_build() -> str | None:
    return compiling.unsupported_reason("dense.c", "LANES=8")


def lstm(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.lstm` to rounding."""
    inputs = (gates, weight, h0, c0)
    h, c_T, *_ = _forward(*inputs, reset, wants_gradient(*inputs))
    return h, h[-1], c_T


def step(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Tensor,
    c0: Tensor,
    reset: Tensor,
    cache: ForwardCache | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Compute h and c `[B, N]` after one step from x `[B, K]`; None where C cannot take these inputs.

    `weights`: that of the input `[4 N, K]`, that of h `[4 N, N]`, the bias of each `[4 N]`. The step goes
    into `cache`, made by `new_cache`.
    """
    (B, N), K = h0.shape, x.shape[-1]
    if (
        not dense.takes(x, weights)
        or [w.shape for w in weights] != _shapes(K, N)
        or x.shape != (B, K)
        or B == 0
        or not (cache is None or cache.has_room(B))
        or not dense.takes_state(reset, h0, c0)
    ):
        return None
    t, hs, panels = 0, None, None
    h, c = h0.new_empty(B, N), c0.new_empty(B, N)
    if cache is not None:
        t = cache.t
        all_h, all_c, hs, panels = cache.tensors
        h, c = all_h[t], all_c[t]
        cache.t += 1
    inputs = (part.contiguous() for part in (x, *weights, h0, c0, reset))
    dense.call("lstm_step", B, 4 * N * (K + N), (B, K, N, t), *inputs, h, c, hs, panels)
    return h, c


def new_cache(steps: int, rows: int, weights: Sequence[Tensor]) -> ForwardCache | None:
    """Make room for an unroll: h and c after each step, h before it, and what backward needs; None where C
    cannot compute it."""
    if unsupported_reason((weights[1], weights[1])):
        return None
    h, c = (torch.empty(steps, rows, weights[1].shape[1]) for _ in range(2))
    return ForwardCache(steps, rows, (h, c, *past(h[0], steps, 6)), weights)


def _shapes(K: int, N: int) -> list[tuple[int, ...]]:
    return [(4 * N, K), (4 * N, N), (4 * N,), (4 * N,)]


class _Steps(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("K", "N")),
        *(
            (name, ctypes.c_void_p)
            for name in ("w_x", "w_h", "b_x", "b_h", "h0", "c0", "h", "c", "hs", "kept")
        ),
    ]


def steps(weights: Sequence[Tensor], h0: Tensor, c0: Tensor, cache: ForwardCache) -> CoreSteps | None:
    """Return the steps of an unroll from h0 and c0 `[B, N]` on, with the weights of `step`.

    They go into `cache`, made by `new_cache`. None where C cannot make them.
    """
    (_, K), (_, N) = weights[0].shape, weights[1].shape
    h, c, hs, panels = cache.tensors
    states = h0, c0
    if (
        [w.shape for w in weights] != _shapes(K, N)
        or not dense.takes(h0, weights)
        or not all(x.shape == h.shape[1:] and x.dtype is torch.float32 and x.is_contiguous() for x in states)
    ):
        return None
    tensors = (*weights, *states, h, c, hs, panels)
    arguments = _Steps(K, N, *compiling.addresses(*tensors))
    state = h[-2].unsqueeze(1), c[-2].unsqueeze(1)
    return CoreSteps("lstm_core", arguments, tensors, state, (K, N), 4 * N * (K + N))


def cached_lstm(
    cache: ForwardCache, x: Tensor, weights: Sequence[Tensor], h0: Tensor, c0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute h `[T, B, N]`, and h and c after the last step, from x `[T, B, K]`, by cached steps."""
    all_h, c, hs, panels = cache.tensors
    saved = reset, hs, panels, x, *weights[:3]
    h, c_T = computed((all_h, c[-1]), _cached_gradients, saved, x, *weights, h0, c0)
    return h, h[-1], c_T


def _cached_gradients(dy: Tensor | None, dc_T: Tensor | None, *saved: Tensor) -> tuple[Tensor | None, ...]:
    reset, hs, panels, x, w_x, w_h, b_x = saved
    dgates, dh0, dc0 = _backward(w_h, reset, panels, dy, dc_T)
    dx, dw_x, db = linear_backward(dgates, x, w_x, b_x)
    return dx, dw_x, dgates.flatten(0, 1).mT @ hs.flatten(0, 1), db, db, dh0, dc0


def past(h0: Tensor, T: int, count: int, save: bool = True) -> list[Tensor]:
    """Allocate h before each step and, of each unit, `count` numbers for backward; empty unless `save`."""
    if not save:
        return [h0.new_empty(0), h0.new_empty(0)]
    B, N = h0.shape
    lanes = dense.lanes(B)
    return [h0.new_empty(T, B, N), h0.new_empty(T, (B + lanes - 1) // lanes * lanes, count, N)]


def recurrence(
    name: str,
    arguments: str,
    results: int,
    ends: str,
    allocate: Callable[..., tuple[Tensor, ...]],
    allocate_gradients: Callable[..., tuple[Tensor, ...]],
    differentiate: Differentiate,
) -> tuple[Operator, Operator]:
    """Make an operator of `{name}_forward` of `dense.c` and one of `{name}_backward`.

    `arguments`: gates, weight, others; the last two of `results` are those of `past`. Backward takes the
    weight, reset, panels and the gradients `ends`.
    """

    def fill(found: Sequence[Tensor], *given: Any) -> None:
        *tensors, _ = given
        T, B, N = found[0].shape
        work = given[1].numel() * T
        dense.call(f"{name}_forward", B, work, (T, B, N), *(x.contiguous() for x in tensors), *found)

    def fill_gradients(
        gradients: Sequence[Tensor], weight: Tensor, reset: Tensor, panels: Tensor, *later: Tensor | None
    ) -> None:
        (T, B), N = reset.shape, weight.shape[1]
        given = weight.mT.contiguous(), reset.contiguous(), panels
        ends = (None if x is None else x.contiguous() for x in later)
        dense.call(f"{name}_backward", B, weight.numel() * T, (T, B, N), *given, *ends, *gradients)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        weight, reset = inputs[1], inputs[-2]
        ctx.save_for_backward(weight, reset, *output[-2:])

    schema, back = f"{arguments} reset | save", f"weight reset panels {ends}"
    return (
        Operator(f"native_{name}_forward", schema, results, allocate, fill, save, differentiate),
        Operator(f"native_{name}_backward", back, 3, allocate_gradients, fill_gradients),
    )


def _results(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, reset: Tensor, save: bool
) -> tuple[Tensor, ...]:
    """Allocate h, c after the last step and what backward needs."""
    T, (B, N) = len(gates), h0.shape
    return h0.new_empty(T, B, N), c0.new_empty(B, N), *past(h0, T, 6, save)


def _gradients(weight: Tensor, reset: Tensor, panels: Tensor, *_: Tensor | None) -> tuple[Tensor, ...]:
    """Allocate those of gates, h0 and c0."""
    (T, B), N = reset.shape, weight.shape[1]
    return panels.new_empty(T, B, 4 * N), panels.new_empty(B, N), panels.new_empty(B, N)


@without_autocast
def _differentiate(
    ctx: Any, dy: Tensor | None, dc_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    weight, reset, hs, panels = ctx.saved_tensors
    dgates, dh0, dc0 = _backward(weight, reset, panels, dy, dc_T)
    return dgates, dgates.flatten(0, 1).mT @ hs.flatten(0, 1), dh0, dc0, None, None


_forward, _backward = recurrence(
    "lstm", "gates weight h0 c0", 4, "dy? dc_T?", _results, _gradients, _differentiate
)
