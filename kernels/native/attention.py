"""Attention within a window and the DeltaFormer in C for CPUs, forward and backward, by `attention.c`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..operator import Operator
from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from ..reference import KERNELS
from ..untraced import constant
from . import compiling, rules
from .compiling import addresses

_SOURCE = "attention.c"
"""built once, for heads of any size"""


def unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why C does not support these inputs, which passed `Shapes.check`, or None."""
    return rules.tensor_reason(inputs[0]) or _build_reason()


@constant
def _build_reason() -> str | None:
    return compiling.unsupported_reason(_SOURCE)


class _Window(ctypes.Structure):
    _fields_ = [
        ("span", rules._Span),
        *((name, ctypes.c_int64) for name in ("M", "G", "first", "second", "skip")),
    ]


def attention(normalise: bool, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equals `reference.attention` to rounding; the backend comes last."""
    *floats, reset, _ = inputs
    state, kind = floats[-3:], KERNELS.index("softmax" if normalise else "exp")
    outputs = _attention(*floats, reset, wants_gradient(*floats), wants_gradient(*state), kind)
    y, keys, values, live, *_ = outputs
    return y, keys, values, live


def deltaformer(first: str, second: str, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equals `reference.deltaformer` to rounding; the backend comes last."""
    *floats, reset, _ = inputs
    kinds = KERNELS.index(first), KERNELS.index(second)
    y, _, keys, values, live = _deltaformer(*floats, reset, wants_gradient(*floats[-3:]), *kinds)
    return y, keys, values, live


def _attention_results(*inputs: Any) -> tuple[Tensor, ...]:
    """Allocate y, the state after the last step and, empty unless `save`, what backward needs: the largest
    scores and the sums of weights."""
    _, _, v, decay, _, *state, _, save, _, _ = inputs
    largest, total = (decay.new_empty(decay.shape if save else 0) for _ in range(2))
    return _like(v), *map(_like, state), largest, total


def _fill_attention(results: tuple[Tensor, ...], *inputs: Any) -> None:
    q, k, v, decay, bias, *state, reset, _, learns_state, kind = inputs
    strided = _rows(q), _rows(k), _rows(v), decay, _bias(bias)
    _call("attention_forward", (kind, kind), learns_state, reset, strided, state, results)


def _attention_gradients(*inputs: Any) -> tuple[Tensor, ...]:
    """Allocate those of all floats, in order; empty for what is not learned."""
    q, k, v, decay, bias, *more, learns_bias, learns_state, _ = inputs
    dbias = bias.new_empty(bias.shape if learns_bias else 0)
    state = (x.new_empty(x.shape if learns_state else 0) for x in more[:3])
    return _like(q), _like(k), _like(v), _like(decay), dbias, *state


def _fill_attention_gradients(gradients: tuple[Tensor, ...], *inputs: Any) -> None:
    q, k, v, decay, bias, *more, _, learns_state, kind = inputs
    strided = _rows(q), _rows(k), _rows(v), decay, _bias(bias)
    keys, values, live, reset, *saved = more
    dense = keys, values, live, *saved
    _call("attention_backward", (kind, kind), learns_state, reset, strided, dense, gradients)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, ctx.learns_state, ctx.kind = inputs
    ctx.save_for_backward(*tensors, *output[-2:])


@without_autocast
def _differentiate_attention(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    learned = ctx.needs_input_grad[4], ctx.learns_state
    gradients = _attention_backward(*ctx.saved_tensors, *grads[:4], *learned, ctx.kind)
    return *(x if x.numel() else None for x in gradients), *[None] * 4


def _deltaformer_results(*inputs: Any) -> tuple[Tensor, ...]:
    """Allocate y, what is written, and the state after the last step."""
    q, _, v, _, _, _, _, *state, _, _, _, _ = inputs
    return q.new_empty(*q.shape[:-1], v.shape[-1]), _like(v), *map(_like, state)


def _fill_deltaformer(results: tuple[Tensor, ...], *inputs: Any) -> None:
    q, k, v, w, mix, alpha, beta, *state, reset, learns_state, first, second = inputs
    strided = _groups(q), _rows(k), _rows(v), _groups(w), alpha, beta
    _call("deltaformer_forward", (first, second), learns_state, reset, strided, (mix, *state), results)


def _deltaformer_gradients(*inputs: Any) -> tuple[Tensor, ...]:
    """Allocate those of all floats, in order, mix's for each row; empty for what is not learned."""
    q, k, v, w, mix, alpha, beta, *more, learns_state, _, _ = inputs
    dmix = mix.new_empty(q.shape[1], *mix.shape)
    state = (x.new_empty(x.shape if learns_state else 0) for x in more[:3])
    return _like(q), _like(k), _like(v), _like(w), dmix, _like(alpha), _like(beta), *state


def _fill_deltaformer_gradients(gradients: tuple[Tensor, ...], *inputs: Any) -> None:
    q, k, v, w, mix, alpha, beta, *more, learns_state, first, second = inputs
    strided = _groups(q), _rows(k), _rows(v), _groups(w), alpha, beta
    keys, values, live, reset, *saved = more
    dense = mix, keys, values, live, *saved
    _call("deltaformer_backward", (first, second), learns_state, reset, strided, dense, gradients)


def _save_deltaformer(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, ctx.learns_state, ctx.first, ctx.second = inputs
    ctx.save_for_backward(*tensors, output[1])


@without_autocast
def _differentiate_deltaformer(
    ctx: Any, dy: Tensor | None, _: Tensor | None, *ends: Tensor | None
) -> tuple[Tensor | None, ...]:
    kinds = ctx.first, ctx.second
    gradients = [*_deltaformer_backward(*ctx.saved_tensors, dy, *ends, ctx.learns_state, *kinds)]
    gradients[4] = gradients[4].sum(0)  # of mix, over rows
    return *(x if x.numel() else None for x in gradients), *[None] * 4


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _groups(x: Tensor) -> Tensor:
    return x if x.stride()[-2:] == (x.shape[-1], 1) else x.contiguous()


def _bias(x: Tensor) -> Tensor | None:
    """Return None for a bias that is a single 0, expanded; else the bias with dense rows."""
    return None if not any(x.stride()) and not x.flatten()[0] else _rows(x)


def _call(
    name: str,
    kinds: tuple[int, int],
    learns_state: bool,
    reset: Tensor,
    inputs: Sequence[Tensor | None],
    saved: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
) -> None:
    """Call a function of `attention.c`.

    `inputs`: q, k, v and other strided tensors. `saved`: made contiguous here. `outputs`: filled by it.
    """
    q, k, v, *_ = inputs
    assert q is not None and k is not None and v is not None
    (T, B, H, V), groups = v.shape, q.shape[3] if q.dim() == 5 else 1
    M = next(x.shape[2] for x in saved if x is not None and x.dim() == 4)  # the keys are the first of these
    threads, reset = rules._threads(v[0], T * groups * (M + T)), reset.contiguous()
    span = rules._Span(T, B, H, V, k.shape[-1], threads, reset.data_ptr(), 1)
    # An empty state is skipped, unless its gradients are needed.
    window = _Window(span, M, groups, *kinds, not learns_state)
    dense = [None if x is None else x.contiguous() for x in saved]
    scratch = v.new_empty(threads * _function("attention_room", 0, 0)(window))
    strided = [rules._strided(x) for x in inputs]
    pointers = addresses(*dense, *outputs, scratch)
    _function(name, len(strided), len(pointers))(window, *strided, *pointers)


@functools.cache
def _function(name: str, strided: int, pointers: int) -> Any:
    kinds = *[rules._Strided] * strided, *[ctypes.c_void_p] * pointers
    function = compiling.typed(compiling.library(_SOURCE), name, ctypes.POINTER(_Window), *kinds)
    function.restype = None if strided else ctypes.c_int64
    return function


_ATTENTION = "q k v decay bias keys values live reset"
_DELTAFORMER = "q k v w mix alpha beta keys values live reset"
_ENDS = "dy? dkeys_T? dvalues_T? dlive_T?"
_attention_backward = Operator(
    "native_attention_backward",
    f"{_ATTENTION} largest total {_ENDS} | learns_bias learns_state kind",
    8,
    _attention_gradients,
    _fill_attention_gradients,
)
_attention = Operator(
    "native_attention_forward",
    f"{_ATTENTION} | save learns_state kind",
    6,
    _attention_results,
    _fill_attention,
    _save_attention,
    _differentiate_attention,
)
_deltaformer_backward = Operator(
    "native_deltaformer_backward",
    f"{_DELTAFORMER} written {_ENDS} | learns_state first second",
    10,
    _deltaformer_gradients,
    _fill_deltaformer_gradients,
)
_deltaformer = Operator(
    "native_deltaformer_forward",
    f"{_DELTAFORMER} | learns_state first second",
    5,
    _deltaformer_results,
    _fill_deltaformer,
    _save_deltaformer,
    _differentiate_deltaformer,
)
