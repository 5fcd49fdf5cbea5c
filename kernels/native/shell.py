"""One step of a whole core of fast weights in one call of `dense.c`: the shell, and the memory in it.

Called piece by piece, an actor's step of few rows takes Python twice as long as it takes C.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import compiling, dense, rules
from .known import Kept

_MAPS = ("", "normalized_elu", "softmax", "sigmoid")
_PARTS, _STATES = 7, 3
_RULES = {
    "delta": ("delta_forward",),
    "delta_rnn": ("delta_forward", "delta_rnn_forward"),
    "recurrent_delta": ("recurrent_delta_forward",),
}


class StepRule(NamedTuple):
    """A memory as `dense.c` knows it."""

    rule: str
    """`delta` (state W; without β the sum rule), `delta_rnn` (W, R, y) or `recurrent_delta` (W, y)"""
    maps: tuple[str, ...]
    """what becomes of each part that the slow net emits: "", normalized_elu, softmax or sigmoid"""
    slow: tuple[Tensor, ...] = ()
    """the slow weights of `recurrent_delta`: Rq, Rk, Rv, rb"""


class Shape(NamedTuple):
    """Sizes of a shell."""

    inputs: int
    hidden: int
    ff: int
    heads: int
    eps: float
    """of LayerNorm"""
    epsilon: float
    """of normalized_elu"""


class _Shell(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("inputs", "d", "ff", "heads", "layers", "parts", "states")),
        *((name, ctypes.c_int64 * _PARTS) for name in ("sizes", "maps")),
        ("state_sizes", ctypes.c_int64 * _STATES),
        *((name, ctypes.c_float) for name in ("eps", "epsilon")),
        *((name, ctypes.c_void_p) for name in _RULES),
    ]


class _Kept(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("stream", "emitted", "middle", "hidden")),
        *((name, ctypes.c_int64) for name in ("steps", "t")),
    ]


def new_kept(
    steps: int, rows: int, layers: int, sizes: tuple[int, int, int], weights: Sequence[Tensor]
) -> Kept:
    """Make room for an unroll of a core with these weights; sizes: of the stream, what is emitted, hidden."""
    stream, emitted, hidden = sizes
    shapes = ((layers + 1, stream), (layers, emitted), (layers, stream), (layers, hidden))
    return Kept(steps, rows, tuple(torch.empty(n, steps, rows, size) for n, size in shapes), weights)


def step(
    shape: Shape,
    rule: str,
    maps: tuple[str, ...],
    x: Tensor,
    state: tuple[Tensor, ...],
    reset: Tensor,
    weights: Sequence[Tensor | None],
    kept: Kept | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """Compute `y [B, hidden]` and the next state; None where C cannot take these inputs.

    x `[B, inputs]`, state `[B, layers, ...]` with layers first in memory, reset `[B]`. `weights` has those of
    the input projection and, for each layer, those of the shell and of the memory (None for each of the four
    that it has not), in the order of `dense.c`. The step goes into `kept`, made by `new_kept`.
    """
    B, layers, h = len(x), (len(weights) - 2) // 16, shape.hidden // shape.heads
    parts = tuple((layers, B, *rest) for rest in _state_shapes(rule, shape.heads, h))
    before = [part.transpose(0, 1) for part in state]
    if (
        not dense.takes(x, weights)
        or not all(map(_fits, weights, _weight_shapes(shape, rule, maps, layers)))
        or h > rules.MAX_SIZE
        or max(shape.ff, shape.heads * sum(_sizes(rule, maps, h))) > dense.MAX_WIDTH
        or x.shape != (B, shape.inputs)
        or B == 0
        or not (kept is None or kept.has_room(B))
        or reset.shape != (B,)
        or reset.dtype is not torch.bool
        or not (reset.is_cpu and reset.is_contiguous() and x.is_contiguous())
        or tuple(part.shape for part in before) != parts
        or not all(part.dtype is torch.float32 and part.is_cpu and part.is_contiguous() for part in before)
        or rules._cannot_build(-(-h // rules.LANES))
    ):
        return None
    width = dense.lanes(B)
    function, shell = _function(shape, rule, maps, layers, width)
    after, y = [x.new_empty(part) for part in parts], x.new_empty(B, shape.hidden)
    work = B * (x.shape[1] * shape.hidden + layers * shape.hidden * (shape.ff + shape.hidden) * 2)
    threads = min(torch.get_num_threads(), -(-B // width)) if work > 1 << 20 else 1
    function(
        threads,
        B,
        shell,
        x.data_ptr(),
        reset.data_ptr(),
        *map(_pointers, (weights, before, after)),
        y.data_ptr(),
        None if kept is None else _Kept(*compiling.addresses(*kept.tensors), kept.steps, kept.t),
    )
    if kept is not None:
        kept.t += 1
    return y, tuple(part.transpose(0, 1) for part in after)


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*compiling.addresses(*tensors))


def _fits(weight: Tensor | None, shape: tuple[int, ...]) -> bool:
    return weight is None or weight.shape == shape


@functools.cache
def _weight_shapes(shape: Shape, rule: str, maps: tuple[str, ...], layers: int) -> list[tuple[int, ...]]:
    _, d, ff, heads, *_ = shape
    h = d // heads
    emitted = heads * sum(_sizes(rule, maps, h))
    layer = [(d,), (d,), (emitted, d), (emitted,), (d, d), (d,), (d,), (d,), (ff, d), (ff,), (d, ff), (d,)]
    return [(d, shape.inputs), (d,), *(layer + [(heads, h, h)] * 3 + [(heads, h)]) * layers]


@functools.cache
def _state_shapes(rule: str, heads: int, h: int) -> tuple[tuple[int, ...], ...]:
    W, y = (heads, h, h), (heads, h)
    return {"delta": (W,), "delta_rnn": (W, W, y), "recurrent_delta": (W, y)}[rule]


@functools.cache
def _sizes(rule: str, maps: tuple[str, ...], h: int) -> tuple[int, ...]:
    """How many numbers each part has: vectors first, then the strengths."""
    strengths = len(maps) - {"delta": 3, "delta_rnn": 5, "recurrent_delta": 3}[rule]
    return (h,) * (len(maps) - strengths) + (1,) * strengths


@functools.cache
def _function(shape: Shape, rule: str, maps: tuple[str, ...], layers: int, width: int) -> tuple[Any, Any]:
    h = shape.hidden // shape.heads
    sizes = _sizes(rule, maps, h)
    states = [torch.Size(part).numel() for part in _state_shapes(rule, shape.heads, h)]
    blocks = compiling.library("rules.c", f"N={-(-h // rules.LANES)}")
    entries = [ctypes.cast(getattr(blocks, f"{name}_forward"), ctypes.c_void_p).value for name in _RULES]
    known = [
        at if f"{name}_forward" in _RULES[rule] else None for name, at in zip(_RULES, entries, strict=True)
    ]
    shell = _Shell(
        shape.inputs,
        shape.hidden,
        shape.ff,
        shape.heads,
        layers,
        len(maps),
        len(states),
        (ctypes.c_int64 * _PARTS)(*sizes),
        (ctypes.c_int64 * _PARTS)(*map(_MAPS.index, maps)),
        (ctypes.c_int64 * _STATES)(*states),
        shape.eps,
        shape.epsilon,
        *known,
    )
    function = compiling.library("dense.c", f"LANES={width}").shell_step
    function.argtypes = [
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(_Shell),
        *[ctypes.c_void_p] * 6,
        ctypes.POINTER(_Kept),
    ]
    function.restype = None
    return function, shell
