"""One step of a whole core of fast weights in one call of `dense.c`: the backbone, and the memory in it.

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
from .acting import CoreSteps
from .forward_cache import ForwardCache

_ACTIVATIONS = ("", "normalized_elu", "softmax", "sigmoid", "twice_sigmoid", "unit", "root2", "sigmoid_root")
_PARTS, _STATES, _WEIGHTS = 8, 4, 21
_KINDS = ("kda", "gated_delta_2", "delta_product", "rwkv7")
_GATES = ("none", "silu", "sigmoid")
_RULES = {
    "delta": ("delta",),
    "gated": ("gated",),
    "momentum": ("momentum",),
    "delta_rnn": ("delta", "delta_rnn"),
    "recurrent_delta": ("recurrent_delta",),
    "generalised": ("generalised",),
}
"""The functions of each rule, in the order of `dense.c`."""


class Memory(NamedTuple):
    """A memory as `dense.c` knows it."""

    rule: str
    """`delta` or `gated` (state W; without β the sum rules), `momentum` (W, C), `delta_rnn` (W, R, y),
    `recurrent_delta` (W, y) or `generalised` (W)"""
    activations: tuple[str, ...]
    """activation of each part that the slow net emits, one of `_ACTIVATIONS`; "" is the identity"""
    sizes: tuple[int, ...]
    """size of each part, for one head"""
    root_degree: float = 1.0
    """degree of the root that `sigmoid_root` takes of a sigmoid"""
    steps: int = 0
    """length of the convolution, 0 for none"""
    convolved: int = 0
    """how many parts, from the first, are convolved"""
    gate: str = "none"
    """activation of the output gate, one of `_GATES`"""
    head_eps: float = 0.0
    """epsilon of the heads' norm, 0 for none"""
    kind: str = "kda"
    """memory that feeds the generalised rule, one of `_KINDS`"""
    writes: int = 1
    """writes per step"""
    rank: int = 0
    """input width, per head, of the low-rank projections to the decays (RWKV-7: and to the learning rates)"""


class Shape(NamedTuple):
    """Sizes of a backbone."""

    inputs: int
    hidden: int
    ff: int
    heads: int
    eps: float
    """epsilon of LayerNorm"""
    epsilon: float
    """what `normalized_elu` adds to the sum by which it divides"""


class _Backbone(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("inputs", "d", "ff", "heads", "layers", "parts", "states")),
        *((name, ctypes.c_int64 * _PARTS) for name in ("sizes", "activations")),
        ("state_sizes", ctypes.c_int64 * _STATES),
        *((name, ctypes.c_int64) for name in ("steps", "convolved", "gate", "memory", "writes", "rank")),
        *((name, ctypes.c_float) for name in ("eps", "epsilon", "root_degree", "head_eps")),
        *((name, ctypes.c_void_p) for name in _RULES),
    ]


_SHELL = ("stream", "projected", "middle", "hidden")
"""What is cached of each layer: its input (and, last, the output of all), what its slow net emits, and the
input and hidden units of its feedforward sub-layer."""
_INSIDE = ("y", "g", "q_used", "k_used", "beta_used", "error")
"""What is cached of the rule besides, for `recurrent_delta` only."""


class _Cache(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_SHELL, *_INSIDE)),
        *((name, ctypes.c_int64) for name in ("steps", "t")),
    ]


class _Steps(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("backbone", "weights", "first", "even", "odd", "kept")]
    # first: state before step 0; even, odd: buffers for the state after even and odd steps; kept: the cache


class Plan(NamedTuple):
    """A core as `dense.c` steps it."""

    shape: Shape
    memory: Memory
    layers: int
    weights: Sequence[Tensor | None]
    pointers: Any
    """pointers to the weights"""


def plan(shape: Shape, memory: Memory, weights: Sequence[Tensor | None]) -> Plan | None:
    """Prepare the steps of a core; None where C cannot make them. A plan is good until a weight is replaced.

    `weights` has those of the input projection and, for each layer, those of the backbone and of the memory
    (None for each of the nine that it has not), in the order of `dense.c`.
    """
    h, layers = shape.hidden // shape.heads, (len(weights) - 2) // _WEIGHTS
    convolved = memory.steps * shape.heads * sum(memory.sizes[: memory.convolved])
    widest = max(shape.inputs, shape.hidden, shape.ff, shape.heads * sum(memory.sizes), convolved)
    shapes = _weight_shapes(shape, memory, layers)
    for weight, each in zip(weights, shapes, strict=True):
        if weight is None:
            continue
        right = weight.dtype is torch.float32 and weight.is_cpu and weight.is_contiguous()
        if not right or weight.shape != each:
            return None
    if h > rules.MAX_SIZE or widest > dense.MAX_WIDTH:
        return None
    if rules.build_reason(rules.source(memory.rule), -(-h // rules.BLOCK)):
        return None
    return Plan(shape, memory, layers, weights, _pointers(weights))


def new_cache(plan: Plan, steps: int, rows: int) -> ForwardCache:
    """Make room for what the steps of an unroll compute; until its end its modules must stay as they are."""
    shape, weights = plan.shape, [weight for weight in plan.weights if weight is not None]
    h = shape.hidden // shape.heads
    projected = shape.heads * sum(plan.memory.sizes)
    shapes: list[tuple[int, ...]] = [(plan.layers + 1, steps, rows, shape.hidden)]
    shapes += [(plan.layers, steps, rows, size) for size in (projected, shape.hidden, shape.ff)]
    if plan.memory.rule == "recurrent_delta" and not has_conv_norm_or_gate(plan.memory):
        strengths = (plan.layers, steps, rows, shape.heads)
        shapes += [strengths if name == "beta_used" else (*strengths, h) for name in _INSIDE]
    tensors = [weights[0].new_empty(each) for each in shapes]
    at = dict(zip((*_SHELL, *_INSIDE), compiling.addresses(*tensors), strict=False))
    return ForwardCache(steps, rows, tuple(tensors), weights, (plan, _Cache(**at, steps=steps)))


def step(
    plan: Plan, x: Tensor, state: tuple[Tensor, ...], reset: Tensor, cache: ForwardCache | None = None
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """Compute `y [B, hidden]` and the next state; None where C cannot take these inputs.

    x `[B, inputs]`, state `[B, layers, ...]` with layers first in memory, reset `[B]`. The step goes into
    `cache`, made by `new_cache`.
    """
    shape, memory, layers, _, weights = plan
    B, before = len(x), _before(plan, state, len(x))
    if (
        not dense.is_supported(x)
        or before is None
        or x.shape != (B, shape.inputs)
        or B == 0
        or not (cache is None or cache.has_room(B))
        or reset.shape != (B,)
        or reset.dtype is not torch.bool
        or not (reset.is_cpu and reset.is_contiguous() and x.is_contiguous())
    ):
        return None
    width = dense.lanes(B)
    function, backbone = _function(shape, memory, layers, width)
    after, y = [torch.empty_like(part) for part in before], x.new_empty(B, shape.hidden)
    threads = dense.threads(B, width, B * _work(plan))
    place = None
    if cache is not None:
        _, place = cache.prepared
        place.t = cache.t
        cache.t += 1
        cache.after = after
    states = _pointers(before), _pointers(after)
    function(threads, B, backbone, x.data_ptr(), reset.data_ptr(), weights, *states, y.data_ptr(), place)
    return y, tuple(part.transpose(0, 1) for part in after)


def steps(plan: Plan, state: tuple[Tensor, ...], cache: ForwardCache) -> CoreSteps | None:
    """Return the steps of an unroll from `state` on, as in `step`; they go into `cache`, made by `new_cache`.

    None where C cannot make them.
    """
    shape, memory, layers, _, weights = plan
    before = _before(plan, state, cache.rows)
    if before is None:
        return None
    even, odd = ([torch.empty_like(part) for part in before] for _ in range(2))
    cache.after, earlier = (even, odd) if cache.steps % 2 else (odd, even)
    _, backbone = _function(shape, memory, layers, dense.lanes(cache.rows))
    _, place = cache.prepared
    states = [_pointers(several) for several in (before, even, odd)]
    pointers = [backbone, weights, *states, place]
    arguments = _Steps(*map(ctypes.addressof, pointers))
    state = tuple(part.transpose(0, 1) for part in earlier)
    held = pointers, before, even, odd, cache.tensors
    return CoreSteps("backbone_core", arguments, held, state, (shape.inputs, shape.hidden), _work(plan))


def _before(plan: Plan, state: tuple[Tensor, ...], rows: int) -> list[Tensor] | None:
    """Return a state with layers first, `[layers, B, ...]`; None where C cannot read it."""
    before = [part.transpose(0, 1) for part in state]
    right = [part.shape for part in before] == [(plan.layers, rows, *rest) for rest in _states(*plan[:2])]
    readable = all(part.dtype is torch.float32 and part.is_cpu and part.is_contiguous() for part in before)
    return before if right and readable else None


def _work(plan: Plan) -> int:
    """Return how many multiplications a row takes in the linear layers of the backbone."""
    shape, projected = plan.shape, plan.shape.heads * sum(plan.memory.sizes)
    return shape.hidden * (shape.inputs + plan.layers * (projected + shape.hidden + 2 * shape.ff))


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*compiling.addresses(*tensors))


@functools.cache
def _weight_shapes(shape: Shape, memory: Memory, layers: int) -> list[tuple[int, ...] | None]:
    d, ff, projected = shape.hidden, shape.ff, shape.heads * sum(memory.sizes)
    before, after = [(d,), (d,), (projected, d), (projected,)], [(d, d), (d,), (d,), (d,)]
    feedforward, inside = [(ff, d), (ff,), (d, ff), (d,)], _memory_shapes(shape, memory)
    inside += [None] * (9 - len(inside))
    return [(d, shape.inputs), (d,), *[*before, *after, *feedforward, *inside] * layers]


def _memory_shapes(shape: Shape, memory: Memory) -> list[tuple[int, ...] | None]:
    """Return the shapes of a memory's weights besides the slow net: its convolution's, its heads' norm's, and
    its rule's own."""
    d, heads, h = shape.hidden, shape.heads, shape.hidden // shape.heads
    around = [(memory.steps, heads * sum(memory.sizes[: memory.convolved])), (h,)]
    per_head, low_rank = (heads, h), (d, heads * memory.rank)
    if memory.rule == "recurrent_delta":
        return [*around, *[(heads, h, h)] * 3, per_head]
    if memory.rule != "generalised":
        return [*around]
    if memory.kind == "rwkv7":
        return [*around, low_rank, (d,), low_rank, (d,), per_head, per_head, per_head]
    of_decay = per_head if memory.kind != "delta_product" else (heads, 1)
    return [*around, low_rank, (heads, 1), of_decay]


@functools.cache
def _states(shape: Shape, memory: Memory) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a layer's state, of one row."""
    heads, h = shape.heads, shape.hidden // shape.heads
    W, y = (heads, h, h), (heads, h)
    several = {"momentum": (W, W), "delta_rnn": (W, W, y), "recurrent_delta": (W, y)}
    own = several.get(memory.rule, (W,))
    if not memory.steps:
        return own
    return (*own, (memory.steps - 1, heads * sum(memory.sizes[: memory.convolved])))


def has_conv_norm_or_gate(memory: Memory) -> bool:
    """Return whether anything stands between the slow net, the rule and the layer."""
    return memory.steps > 0 or memory.gate != "none" or memory.head_eps > 0


@functools.cache
def _function(shape: Shape, memory: Memory, layers: int, width: int) -> tuple[Any, Any]:
    h = shape.hidden // shape.heads
    states = [torch.Size(part).numel() for part in _states(shape, memory)]
    blocks = rules.library(-(-h // rules.BLOCK), rules.source(memory.rule))
    known = [
        ctypes.cast(getattr(blocks, f"{name}_forward"), ctypes.c_void_p).value
        if name in _RULES[memory.rule]
        else None
        for name in ("delta", "gated", "momentum", "delta_rnn", "recurrent_delta", "generalised")
    ]
    backbone = _Backbone(
        shape.inputs,
        shape.hidden,
        shape.ff,
        shape.heads,
        layers,
        len(memory.sizes),
        len(states),
        (ctypes.c_int64 * _PARTS)(*memory.sizes),
        (ctypes.c_int64 * _PARTS)(*map(_ACTIVATIONS.index, memory.activations)),
        (ctypes.c_int64 * _STATES)(*states),
        memory.steps,
        memory.convolved,
        _GATES.index(memory.gate),
        _KINDS.index(memory.kind),
        memory.writes,
        memory.rank,
        shape.eps,
        shape.epsilon,
        memory.root_degree,
        memory.head_eps,
        *known,
    )
    numbers, pointers = [ctypes.c_int64] * 2, [ctypes.c_void_p] * 6
    argtypes = (*numbers, ctypes.POINTER(_Backbone), *pointers, ctypes.POINTER(_Cache))
    return compiling.typed(
        compiling.library("dense.c", f"LANES={width}"), "backbone_step", *argtypes
    ), backbone
