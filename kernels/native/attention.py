"""Attention within a window and the DeltaFormer in C for CPUs, forward and backward, by `attention.c`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from ..reference import KERNELS
from . import compiling, rules
from .compiling import addresses
from .operator import Operator

FILE, DEFINE = "attention.c", "WINDOW"
"""one library for heads of any size"""

Results = tuple[Tensor, ...]


def unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why C cannot take these inputs, which passed `Shapes.check`; None if it can."""
    return rules._not_for_c(inputs[0]) or _cannot_build()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _cannot_build() -> str | None:
    return compiling.unsupported_reason(FILE, DEFINE)


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


def _attention_in_c(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bias: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
    keep: bool,
    learns_state: bool,
    kind: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, the state after the last step and, empty unless `keep`, what backward needs: largest scores
    and the sums of weights. `learns_state`: whether gradients of the first state will be asked for."""
    outputs = _attention_fake(q, k, v, decay, bias, keys, values, live, reset, keep, learns_state, kind)
    inputs = *(_rows(x) for x in (q, k, v)), decay, _bias(bias)
    _call(
        "attention_forward",
        (kind, kind),
        learns_state,
        keys.shape[2],
        reset,
        inputs,
        (keys, values, live),
        outputs,
    )
    return outputs


def _attention_fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    _, _, v, decay, _, *state, _, keep, _, _ = inputs
    largest, total = (decay.new_empty(decay.shape if keep else 0) for _ in range(2))
    keys, values, live = map(_like, state)
    return _like(v), keys, values, live, largest, total


def _attention_backward_in_c(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bias: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
    largest: Tensor,
    total: Tensor,
    dy: Tensor | None,
    dkeys_T: Tensor | None,
    dvalues_T: Tensor | None,
    dlive_T: Tensor | None,
    learns_bias: bool,
    learns_state: bool,
    kind: int,
) -> list[Tensor]:
    """Return gradients of all floats, in order; empty for what is not learned."""
    given = (q, k, v, decay, bias, keys, values, live, reset, largest, total, dy, dkeys_T, dvalues_T)
    grads = _attention_backward_fake(*given, dlive_T, learns_bias, learns_state, kind)
    inputs = *(_rows(x) for x in (q, k, v)), decay, _bias(bias)
    saved = (keys, values, live, largest, total, dy, dkeys_T, dvalues_T, dlive_T)
    _call("attention_backward", (kind, kind), learns_state, keys.shape[2], reset, inputs, saved, grads)
    return grads


def _attention_backward_fake(*inputs: Any) -> list[Tensor]:
    q, k, v, decay, bias, keys, values, live, *_, learns_bias, learns_state, _ = inputs
    dbias = bias.new_empty(bias.shape if learns_bias else 0)
    state = [x.new_empty(x.shape if learns_state else 0) for x in (keys, values, live)]
    return [_like(q), _like(k), _like(v), _like(decay), dbias, *state]


def _attention_save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, ctx.learns_state, ctx.kind = inputs
    ctx.save_for_backward(*tensors, *output[-2:])


@without_autocast
def _attention_differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    learned = ctx.needs_input_grad[4], ctx.learns_state
    found = _attention_backward(*ctx.saved_tensors, *grads[:4], *learned, ctx.kind)
    return *(x if x.numel() else None for x in found), *[None] * 4


def _deltaformer_in_c(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    mix: Tensor,
    alpha: Tensor,
    beta: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
    learns_state: bool,
    first: int,
    second: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, what was written, and the state after the last step."""
    given = (q, k, v, w, mix, alpha, beta, keys, values, live, reset)
    outputs = _deltaformer_fake(*given, learns_state, first, second)
    inputs = _groups(q), _rows(k), _rows(v), _groups(w), alpha, beta
    saved = (mix, keys, values, live)
    _call("deltaformer_forward", (first, second), learns_state, keys.shape[2], reset, inputs, saved, outputs)
    return outputs


def _deltaformer_fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, _, v, _, _, _, _, *state, _, _, _, _ = inputs
    y = q.new_empty(*q.shape[:-1], v.shape[-1])
    keys, values, live = map(_like, state)
    return y, _like(v), keys, values, live


def _deltaformer_backward_in_c(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    mix: Tensor,
    alpha: Tensor,
    beta: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
    u: Tensor,
    dy: Tensor | None,
    dkeys_T: Tensor | None,
    dvalues_T: Tensor | None,
    dlive_T: Tensor | None,
    learns_state: bool,
    first: int,
    second: int,
) -> list[Tensor]:
    """Return gradients of all floats, in order, mix's for each row; empty for what is not learned."""
    given = (q, k, v, w, mix, alpha, beta, keys, values, live, reset, u, dy, dkeys_T, dvalues_T, dlive_T)
    grads = _deltaformer_backward_fake(*given, learns_state, first, second)
    inputs = _groups(q), _rows(k), _rows(v), _groups(w), alpha, beta
    saved = (mix, keys, values, live, u, dy, dkeys_T, dvalues_T, dlive_T)
    _call("deltaformer_backward", (first, second), learns_state, keys.shape[2], reset, inputs, saved, grads)
    return grads


def _deltaformer_backward_fake(*inputs: Any) -> list[Tensor]:
    q, k, v, w, mix, alpha, beta, keys, values, live, *_, learns_state, _, _ = inputs
    dmix = mix.new_empty(q.shape[1], *mix.shape)
    state = [x.new_empty(x.shape if learns_state else 0) for x in (keys, values, live)]
    return [_like(q), _like(k), _like(v), _like(w), dmix, _like(alpha), _like(beta), *state]


def _deltaformer_save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.set_materialize_grads(False)
    *tensors, ctx.learns_state, ctx.first, ctx.second = inputs
    ctx.save_for_backward(*tensors, output[1])


@without_autocast
def _deltaformer_differentiate(
    ctx: Any, dy: Tensor | None, _: Tensor | None, *ends: Tensor | None
) -> tuple[Tensor | None, ...]:
    kinds = ctx.first, ctx.second
    found = _deltaformer_backward(*ctx.saved_tensors, dy, *ends, ctx.learns_state, *kinds)
    found[4] = found[4].sum(0)
    return *(x if x.numel() else None for x in found), *[None] * 4


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _groups(x: Tensor) -> Tensor:
    return x if x.stride()[-2:] == (x.shape[-1], 1) else x.contiguous()


def _bias(x: Tensor) -> Tensor | None:
    """Leave out one number for all that adds nothing."""
    return None if not any(x.stride()) and not x.flatten()[0] else _rows(x)


def _call(
    name: str,
    kinds: tuple[int, int],
    learns_state: bool,
    M: int,
    reset: Tensor,
    inputs: tuple[Tensor | None, ...],
    saved: tuple[Tensor | None, ...],
    outputs: Sequence[Tensor],
) -> None:
    """Call a function of `attention.c`: q, k, v and what else has strides, what is made dense, what is
    filled."""
    q, k, v, *_ = inputs
    assert q is not None and k is not None and v is not None
    (T, B, H, V), groups = v.shape, q.shape[3] if q.dim() == 5 else 1
    threads, reset = rules._threads(v[0], T * groups * (M + T)), reset.contiguous()
    span = rules._Span(T, B, H, V, k.shape[-1], threads, reset.data_ptr())
    # What holds nothing is left out, but its gradients may be asked for.
    window = _Window(span, M, groups, *kinds, not learns_state)
    dense = [None if x is None else x.contiguous() for x in saved]
    scratch = v.new_empty(threads * _function("attention_room", 0, 0)(window))
    strided = [rules._strided(x) for x in inputs]
    pointers = addresses(*dense, *outputs, scratch)
    _function(name, len(strided), len(pointers))(window, *strided, *pointers)


@functools.cache
def _function(name: str, strided: int, pointers: int) -> Any:
    kinds = *[rules._Strided] * strided, *[ctypes.c_void_p] * pointers
    function = compiling.typed(compiling.library(FILE, DEFINE), name, ctypes.POINTER(_Window), *kinds)
    function.restype = None if strided else ctypes.c_int64
    return function


_attention_backward = Operator(
    "native_attention_backward", _attention_backward_in_c, _attention_backward_fake
)
_attention = Operator(
    "native_attention_forward", _attention_in_c, _attention_fake, _attention_save, _attention_differentiate
)
_deltaformer_backward = Operator(
    "native_deltaformer_backward", _deltaformer_backward_in_c, _deltaformer_backward_fake
)
_deltaformer = Operator(
    "native_deltaformer_forward",
    _deltaformer_in_c,
    _deltaformer_fake,
    _deltaformer_save,
    _deltaformer_differentiate,
)
