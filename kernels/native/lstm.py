"""The LSTM in C for CPUs: whole unrolls, forward and backward, by `dense.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..operator import Differentiate, Operator
from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from ..untraced import constant
from . import compiling, dense, rules
from .acting import CoreSteps
from .forward_cache import ForwardCache, linear_backward, with_gradient


def unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why C does not support gates `[T, B, ...]` and recurrent weights `[..., N]`, or None."""
    rows, units = inputs[1].shape
    if reason := rules.tensor_reason(inputs[0]):
        return reason
    if rows > dense.MAX_WIDTH:
        return f"the C kernels take up to {dense.MAX_WIDTH * units // rows} units, not {units}"
    return _build_reason()


@constant
def _build_reason() -> str | None:
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
    """Compute h and c `[B, N]` after one step from x `[B, K]`; None if C does not support these inputs.

    `weights`: weight_ih `[4 N, K]`, weight_hh `[4 N, N]`, bias_ih and bias_hh `[4 N]`. h0, c0 `[B, N]`, reset
    `[B]`. The step is written to `cache`, made by `new_cache`.
    """
    (B, N), K = h0.shape, x.shape[-1]
    if (
        not dense.is_supported(x, weights)
        or [w.shape for w in weights] != _shapes(K, N)
        or x.shape != (B, K)
        or B == 0
        or not (cache is None or cache.has_room(B))
        or not dense.is_supported_state(reset, h0, c0)
    ):
        return None
    t, saved_h, saved_gates = 0, None, None
    h, c = h0.new_empty(B, N), c0.new_empty(B, N)
    if cache is not None:
        t = cache.t
        all_h, all_c, saved_h, saved_gates = cache.tensors
        h, c = all_h[t], all_c[t]
        cache.t += 1
    inputs = (part.contiguous() for part in (x, *weights, h0, c0, reset))
    dense.call("lstm_step", B, 4 * N * (K + N), (B, K, N, t), *inputs, h, c, saved_h, saved_gates)
    return h, c


def new_cache(steps: int, rows: int, weights: Sequence[Tensor]) -> ForwardCache | None:
    """Allocate a cache for an unroll: h and c `[steps, rows, N]` after each step, and `new_saved`'s tensors;
    None if C does not support the weights."""
    if unsupported_reason((weights[1], weights[1])):
        return None
    h, c = (torch.empty(steps, rows, weights[1].shape[1]) for _ in range(2))
    return ForwardCache(steps, rows, (h, c, *new_saved(h[0], steps, 6)), weights)


def _shapes(K: int, N: int) -> list[tuple[int, ...]]:
    return [(4 * N, K), (4 * N, N), (4 * N,), (4 * N,)]


class _Steps(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("K", "N")),
        *(
            (name, ctypes.c_void_p)
            for name in ("w_x", "w_h", "b_x", "b_h", "h0", "c0", "h", "c", "saved_h", "saved_gates")
        ),
    ]


def steps(weights: Sequence[Tensor], h0: Tensor, c0: Tensor, cache: ForwardCache) -> CoreSteps | None:
    """Return the steps of an unroll from h0 and c0 `[B, N]` on, with the weights of `step`.

    They are written to `cache`, made by `new_cache`. None if C does not support these inputs.
    """
    (_, K), (_, N) = weights[0].shape, weights[1].shape
    h, c, saved_h, saved_gates = cache.tensors
    states = h0, c0
    if (
        [w.shape for w in weights] != _shapes(K, N)
        or not dense.is_supported(h0, weights)
        or not all(x.shape == h.shape[1:] and x.dtype is torch.float32 and x.is_contiguous() for x in states)
    ):
        return None
    tensors = (*weights, *states, h, c, saved_h, saved_gates)
    arguments = _Steps(K, N, *compiling.addresses(*tensors))
    state = h[-2].unsqueeze(1), c[-2].unsqueeze(1)
    return CoreSteps("lstm_core", arguments, tensors, state, (K, N), 4 * N * (K + N))


def cached_lstm(
    cache: ForwardCache, x: Tensor, weights: Sequence[Tensor], h0: Tensor, c0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h `[T, B, N]`, and h and c `[B, N]` after the last step, computed before from x `[T, B, K]`.

    Gradients flow to x, weights, h0 and c0.
    """
    all_h, c, saved_h, saved_gates = cache.tensors
    saved = reset, saved_h, saved_gates, x, *weights[:3]
    h, c_T = with_gradient((all_h, c[-1]), _cached_gradients, saved, x, *weights, h0, c0)
    return h, h[-1], c_T


def _cached_gradients(dy: Tensor | None, dc_T: Tensor | None, *saved: Tensor) -> tuple[Tensor | None, ...]:
    reset, saved_h, saved_gates, x, w_x, w_h, b_x = saved
    dgates, dh0, dc0 = _backward(w_h, reset, saved_gates, dy, dc_T)
    dx, dw_x, db = linear_backward(dgates, x, w_x, b_x)
    return dx, dw_x, dgates.flatten(0, 1).mT @ saved_h.flatten(0, 1), db, db, dh0, dc0


def new_saved(h0: Tensor, T: int, count: int, save: bool = True) -> list[Tensor]:
    """Allocate what backward needs, empty unless `save`: h before each step, and gates of each unit.

    saved_h: `[T, B, N]`. saved_gates: `[T, panels, count, N, lanes]`, `count` numbers per unit (gates, c)
    as `dense.c` has them: a panel is `lanes` rows. Allocated as `[T, panels * lanes, count, N]`.
    """
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
    """Make operators of `{name}_forward` and `{name}_backward` in `dense.c`.

    `arguments`: names of the inputs, gates and weight first. `results`: number of outputs, the last two those
    of `new_saved`. `ends`: names of the output gradients, which backward takes after weight, reset and
    saved_gates.
    """

    def fill(outputs: Sequence[Tensor], *inputs: Any) -> None:
        *tensors, _ = inputs
        T, B, N = outputs[0].shape
        work = inputs[1].numel() * T
        dense.call(f"{name}_forward", B, work, (T, B, N), *(x.contiguous() for x in tensors), *outputs)

    def fill_gradients(
        gradients: Sequence[Tensor],
        weight: Tensor,
        reset: Tensor,
        saved_gates: Tensor,
        *output_gradients: Tensor | None,
    ) -> None:
        (T, B), N = reset.shape, weight.shape[1]
        inputs = weight.mT.contiguous(), reset.contiguous(), saved_gates
        ends = (None if x is None else x.contiguous() for x in output_gradients)
        dense.call(f"{name}_backward", B, weight.numel() * T, (T, B, N), *inputs, *ends, *gradients)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        weight, reset = inputs[1], inputs[-2]
        ctx.save_for_backward(weight, reset, *output[-2:])

    schema, back = f"{arguments} reset | save", f"weight reset saved_gates {ends}"
    return (
        Operator(f"native_{name}_forward", schema, results, allocate, fill, save, differentiate),
        Operator(f"native_{name}_backward", back, 3, allocate_gradients, fill_gradients),
    )


def _results(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, reset: Tensor, save: bool
) -> tuple[Tensor, ...]:
    """Allocate h `[T, B, N]`, c `[B, N]` after the last step and what backward needs."""
    T, (B, N) = len(gates), h0.shape
    return h0.new_empty(T, B, N), c0.new_empty(B, N), *new_saved(h0, T, 6, save)


def _gradients(weight: Tensor, reset: Tensor, saved_gates: Tensor, *_: Tensor | None) -> tuple[Tensor, ...]:
    """Allocate the gradients of gates `[T, B, 4 N]`, h0 and c0 `[B, N]`."""
    (T, B), N = reset.shape, weight.shape[1]
    return saved_gates.new_empty(T, B, 4 * N), saved_gates.new_empty(B, N), saved_gates.new_empty(B, N)


@without_autocast
def _differentiate(
    ctx: Any, dy: Tensor | None, dc_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    weight, reset, saved_h, saved_gates = ctx.saved_tensors
    dgates, dh0, dc0 = _backward(weight, reset, saved_gates, dy, dc_T)
    return dgates, dgates.flatten(0, 1).mT @ saved_h.flatten(0, 1), dh0, dc0, None, None


_forward, _backward = recurrence(
    "lstm", "gates weight h0 c0", 4, "dy? dc_T?", _results, _gradients, _differentiate
)
