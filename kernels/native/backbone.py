"""One step of a whole core in one call of `dense.c`: the backbone, and the memory of each layer.

Called piece by piece, an actor's step of few rows takes Python twice as long as it takes C.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..reference import KERNELS
from . import compiling, dense, rules
from .acting import CoreSteps
from .forward_cache import ForwardCache

_ACTIVATIONS = ("", "normalized_elu", "softmax", "sigmoid", "twice_sigmoid", "unit", "root2", "sigmoid_root")
_PARTS, _STATES = 8, 4
OF_MEMORY, OF_GATES, OF_LAYER = 9, 8, 29
"""How many weights of a layer are its memory's and its gates', and how many it has in all."""
_KINDS = ("kda", "gated_delta_2", "delta_product", "rwkv7")
_GATES = ("none", "silu", "sigmoid")
_MAX_ATTENTION = 2**17
"""Bound of what a window takes of a thread's stack: four numbers for each slot and each number of a head, and
scores of a block of 16 rows; in numbers."""
_BLOCK = 16
"""rows that a thread computes at a time, as `dense.c` has it"""
_RULES = {
    "delta": ("delta",),
    "gated": ("gated",),
    "momentum": ("momentum",),
    "delta_rnn": ("delta", "delta_rnn"),
    "recurrent_delta": ("recurrent_delta",),
    "generalised": ("generalised",),
    "attention": (),
}
"""The functions of each rule, of a library for each size of heads, in the order of `dense.c`."""


class Memory(NamedTuple):
    """A memory as `dense.c` knows it."""

    rule: str
    """`delta` or `gated` (state W; without β the sum rules), `momentum` (W, C), `delta_rnn` (W, R, y),
    `recurrent_delta` (W, y), `generalised` (W) or `attention` (keys, values, decays)"""
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
    window: int = 0
    """earlier steps that attention looks back on"""
    normalise: bool = True
    """whether attention divides by the sum of its weights"""


class Shape(NamedTuple):
    """Sizes of a backbone."""

    inputs: int
    """with the cosines and sines of the time"""
    hidden: int
    ff: int
    heads: int
    eps: float
    """epsilon of LayerNorm"""
    epsilon: float
    """what `normalized_elu` adds to the sum by which it divides"""
    clock: int = 0
    """pairs of a cosine and a sine of the time that the input has; the time is the state's last tensor"""
    gates: bool = False
    """whether GRU gates stand in place of the residual sums"""


class _Backbone(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("inputs", "clock", "d", "ff", "heads", "layers", "gates")),
        *((name, ctypes.c_int64) for name in ("parts", "states")),
        *((name, ctypes.c_int64 * _PARTS) for name in ("sizes", "activations")),
        ("state_sizes", ctypes.c_int64 * _STATES),
        *((name, ctypes.c_int64) for name in ("steps", "convolved", "gate", "memory", "writes", "rank")),
        *((name, ctypes.c_int64) for name in ("window", "kernel")),
        *((name, ctypes.c_float) for name in ("eps", "epsilon", "root_degree", "head_eps")),
        *((name, ctypes.c_void_p) for name in (*_RULES, "attention_room")),
    ]


_SHELL = ("stream", "middle", "hidden")
"""What is cached of each layer: its input (and, last, the output of all), and the input and hidden units of
its feedforward sub-layer. What its slow net emits follows, a tensor for each layer."""
_INSIDE = ("y", "g", "q_used", "k_used", "beta_used", "error")
"""What is cached of the rule besides, for `recurrent_delta` only."""


class _Cache(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_SHELL, "projected", *_INSIDE)),
        *((name, ctypes.c_int64) for name in ("steps", "t")),
    ]


class _Steps(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("backbone", "weights", "first", "even", "odd", "cache")]
    # first: state before step 0; even, odd: buffers for the state after even and odd steps


class Plan(NamedTuple):
    """A core as `dense.c` steps it."""

    shape: Shape
    memories: tuple[Memory, ...]
    """of each layer"""
    stacked: bool
    """whether the state's tensors are `[B, layers, ...]`, layers first in memory, or follow each other layer
    by layer, `[B, 1, ...]`"""
    weights: Sequence[Tensor | None]
    pointers: Any
    """pointers to the weights, and to what was computed from some"""
    owners: Sequence[Tensor | None]
    """the tensors to which they point"""


def plan(
    shape: Shape,
    memories: tuple[Memory, ...],
    weights: Sequence[Tensor | None],
    substitutes: Mapping[int, Tensor],
    stacked: bool,
) -> Plan | None:
    """Prepare the steps of a core; None where C cannot make them. A plan is good until a weight is replaced,
    or one changes from which something was computed.

    Args:
        shape: the sizes of the backbone.
        memories: the memory of each layer.
        weights: those of the input projection and, for each layer, those of the backbone, of the memory (None
            for each of the nine that it has not) and of the gates (eight, or None), in `dense.c`'s order.
        substitutes: by a weight's index in `weights`, what C reads in its place: attention's keys of ages.
        stacked: as in `Plan`.
    """
    shapes = _weight_shapes(shape, memories)
    for weight, each in zip(weights, shapes, strict=True):
        if weight is None:
            continue
        if not _is_readable(weight) or weight.shape != each:
            return None
    if not all(_can_step(shape, memory) for memory in {*memories}):
        return None
    h = shape.hidden // shape.heads
    for i, value in substitutes.items():
        window = memories[(i - 2) // OF_LAYER].window
        if not _is_readable(value) or value.shape != (shape.heads, h, window):
            return None
    read = [substitutes.get(i, weight) for i, weight in enumerate(weights)]
    return Plan(shape, memories, stacked, weights, _pointers(read), read)


def _is_readable(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_cpu and x.is_contiguous()


@functools.cache
def _can_step(shape: Shape, memory: Memory) -> bool:
    """Return whether C can step a memory of these sizes, whose numbers must fit a thread's stack."""
    h = shape.hidden // shape.heads
    convolved = memory.steps * shape.heads * sum(memory.sizes[: memory.convolved])
    widest = max(shape.inputs, shape.hidden, shape.ff, shape.heads * sum(memory.sizes), convolved)
    widest = max(widest, 3 * shape.hidden * shape.gates)
    if h > rules.MAX_SIZE or widest > dense.MAX_WIDTH:
        return False
    if memory.rule == "attention":
        fits = memory.window * (4 * h + _BLOCK * shape.heads) <= _MAX_ATTENTION
        return fits and not compiling.unsupported_reason("attention.c")
    return not rules.build_reason(rules.source(memory.rule), -(-h // rules.BLOCK))


def new_cache(plan: Plan, steps: int, rows: int) -> ForwardCache | None:
    """Make room for what the steps of an unroll compute; until its end its modules must stay as they are.

    None where a learner could not use it: with gates.
    """
    if plan.shape.gates:
        return None
    shape, weights = plan.shape, [weight for weight in plan.weights if weight is not None]
    h, layers = shape.hidden // shape.heads, len(plan.memories)
    empty = weights[0].new_empty
    shell = [empty(layers + 1, steps, rows, shape.hidden)]
    shell += [empty(layers, steps, rows, size) for size in (shape.hidden, shape.ff)]
    projected = [empty(steps, rows, shape.heads * sum(memory.sizes)) for memory in plan.memories]
    inside = []
    if any(stores_rule(memory) for memory in plan.memories):
        strengths = (layers, steps, rows, shape.heads)
        inside = [empty(strengths if name == "beta_used" else (*strengths, h)) for name in _INSIDE]
    of_layers = _pointers(projected)
    at = dict(zip((*_SHELL, *_INSIDE), compiling.addresses(*shell, *inside), strict=False))
    place = _Cache(**at, projected=ctypes.addressof(of_layers), steps=steps)
    return ForwardCache(steps, rows, (*shell, *projected, *inside), weights, (plan, place, of_layers))


def step(
    plan: Plan, x: Tensor, state: tuple[Tensor, ...], reset: Tensor, cache: ForwardCache | None = None
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """Compute `y [B, hidden]` and the next state; None where C cannot take these inputs.

    x `[B, inputs]` without the time, the state as `Plan.stacked` says, reset `[B]`. The step goes into
    `cache`, made by `new_cache`.
    """
    B, before = len(x), _before(plan, state, len(x))
    if (
        not dense.is_supported(x)
        or before is None
        or x.shape != (B, _input_size(plan.shape))
        or B == 0
        or not (cache is None or cache.has_room(B))
        or reset.shape != (B,)
        or reset.dtype is not torch.bool
        or not (reset.is_cpu and reset.is_contiguous() and x.is_contiguous())
    ):
        return None
    width = dense.lanes(B)
    function, layers = _function(plan.shape, plan.memories, width)
    (after, by_layer), y = _room(plan, B, x), x.new_empty(B, plan.shape.hidden)
    threads = dense.threads(B, width, B * _work(plan))
    place = None
    if cache is not None:
        _, place, _ = cache.prepared
        place.t = cache.t
        cache.t += 1
        cache.after = by_layer
    states = _state_pointers(before), _state_pointers(by_layer)
    function(threads, B, layers, x.data_ptr(), reset.data_ptr(), plan.pointers, *states, y.data_ptr(), place)
    return y, after


def steps(plan: Plan, state: tuple[Tensor, ...], cache: ForwardCache) -> CoreSteps | None:
    """Return the steps of an unroll from `state` on, as in `step`; they go into `cache`, made by `new_cache`.

    None where C cannot make them.
    """
    before = _before(plan, state, cache.rows)
    if before is None:
        return None
    even, odd = (_room(plan, cache.rows, cache.tensors[0]) for _ in range(2))
    (_, cache.after), (earlier, _) = (even, odd) if cache.steps % 2 else (odd, even)
    _, layers = _function(plan.shape, plan.memories, dense.lanes(cache.rows))
    _, place, _ = cache.prepared
    states = [_state_pointers(each) for each in (before, even[1], odd[1])]
    pointers = [layers, plan.pointers, *states, place]
    arguments = _Steps(*map(ctypes.addressof, pointers))
    owners = pointers, plan.owners, before, even, odd, cache.tensors, cache.prepared
    sizes = _input_size(plan.shape), plan.shape.hidden
    return CoreSteps("backbone_core", arguments, owners, earlier, sizes, _work(plan))


ByLayer = Sequence[Sequence[Tensor]]
"""The tensors of a state, `[B, ...]` each, layer by layer."""


def _before(plan: Plan, state: tuple[Tensor, ...], rows: int) -> ByLayer | None:
    """Return a state by layer; None where C cannot read it."""
    of_layers, time = _without_time(plan, state)
    parts = [part.transpose(0, 1) if plan.stacked else part.squeeze(1) for part in of_layers]
    parts += time
    right = all(map(_is_readable, parts)) and [part.shape for part in parts] == _shapes(plan, rows)
    return _by_layer(plan, parts) if right else None


def _room(plan: Plan, rows: int, like: Tensor) -> tuple[tuple[Tensor, ...], ByLayer]:
    """Make room for a state: as the core has it, and by layer."""
    parts = [like.new_empty(each) for each in _shapes(plan, rows)]
    of_layers, time = _without_time(plan, parts)
    state = [part.transpose(0, 1) if plan.stacked else part.unsqueeze(1) for part in of_layers]
    return (*state, *time), _by_layer(plan, parts)


def _without_time(plan: Plan, state: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Split a state into the layers' tensors and the time, which comes last if there is one."""
    count = len(state) - bool(plan.shape.clock)
    return state[:count], state[count:]


def _shapes(plan: Plan, rows: int) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a state as C reads them."""
    time = [(rows, 1)] * bool(plan.shape.clock)
    if plan.stacked:
        layers = len(plan.memories)
        return [*((layers, rows, *each) for each in _states(plan.shape, plan.memories[0])), *time]
    return [*((rows, *each) for memory in plan.memories for each in _states(plan.shape, memory)), *time]


def _by_layer(plan: Plan, parts: Sequence[Tensor]) -> ByLayer:
    """Share out tensors of `_shapes` among the layers, and after these the time."""
    of_layers, time = _without_time(plan, parts)
    if plan.stacked:
        return [*zip(*of_layers, strict=True), *([part] for part in time)]
    rest = iter(of_layers)
    counts = (len(_states(plan.shape, memory)) for memory in plan.memories)
    return [*(list(itertools.islice(rest, count)) for count in counts), *([part] for part in time)]


def _state_pointers(state: ByLayer) -> Any:
    """Return `_STATES` pointers a layer, and the time's."""
    return _pointers([part for parts in state for part in (*parts, *[None] * (_STATES - len(parts)))])


def _input_size(shape: Shape) -> int:
    return shape.inputs - 2 * shape.clock


def _work(plan: Plan) -> int:
    """Return how many multiplications a row takes in the linear layers of the backbone, and in attention."""
    shape, windows = plan.shape, sum(memory.window for memory in plan.memories)
    projected = shape.heads * sum(sum(memory.sizes) for memory in plan.memories)
    around = len(plan.memories) * (shape.hidden + 2 * shape.ff + 12 * shape.hidden * shape.gates)
    return shape.hidden * (shape.inputs + projected + around + 2 * windows)


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*compiling.addresses(*tensors))


@functools.cache
def _weight_shapes(shape: Shape, memories: tuple[Memory, ...]) -> list[tuple[int, ...] | None]:
    d, ff = shape.hidden, shape.ff
    shapes: list[tuple[int, ...] | None] = [(d, shape.inputs), (d,)]
    for memory in memories:
        projected, inside = shape.heads * sum(memory.sizes), _memory_shapes(shape, memory)
        shapes += [(d,), (d,), (projected, d), (projected,), (d, d), (d,), (d,), (d,)]
        shapes += [(ff, d), (ff,), (d, ff), (d,), *inside, *[None] * (OF_MEMORY - len(inside))]
        gate = [(3 * d, d), (2 * d, d), (d, d), (d,)] if shape.gates else [None] * 4
        shapes += [*gate, *gate]
    return shapes


def _memory_shapes(shape: Shape, memory: Memory) -> list[tuple[int, ...] | None]:
    """Return the shapes of a memory's weights besides the slow net: its convolution's, its heads' norm's, and
    its rule's own."""
    d, heads, h = shape.hidden, shape.heads, shape.hidden // shape.heads
    around = [(memory.steps, heads * sum(memory.sizes[: memory.convolved])), (h,)]
    per_head, low_rank = (heads, h), (d, heads * memory.rank)
    if memory.rule == "recurrent_delta":
        return [*around, *[(heads, h, h)] * 3, per_head]
    if memory.rule == "attention":
        return [*around, per_head, (d, d), per_head, (heads, memory.window)]
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
    slots = (heads, memory.window)
    attention = (*slots, h), (*slots, h), slots
    several = {"momentum": (W, W), "delta_rnn": (W, W, y), "recurrent_delta": (W, y), "attention": attention}
    own = several.get(memory.rule, (W,))
    if not memory.steps:
        return own
    return (*own, (memory.steps - 1, heads * sum(memory.sizes[: memory.convolved])))


def stores_rule(memory: Memory) -> bool:
    """Return whether a learner needs not compute the rule again; nothing may stand around it."""
    alone = memory.steps == 0 and memory.gate == "none" and memory.head_eps == 0
    return memory.rule == "recurrent_delta" and alone


@functools.cache
def _function(shape: Shape, memories: tuple[Memory, ...], width: int) -> tuple[Any, Any]:
    """Return `backbone_step` for `width` lanes, and the structs of all layers."""
    layers = (_Backbone * len(memories))(*(_layer(shape, memory, len(memories)) for memory in memories))
    numbers, pointers = [ctypes.c_int64] * 2, [ctypes.c_void_p] * 6
    argtypes = (*numbers, ctypes.POINTER(_Backbone), *pointers, ctypes.POINTER(_Cache))
    library = compiling.library("dense.c", f"LANES={width}")
    return compiling.typed(library, "backbone_step", *argtypes), layers


def _layer(shape: Shape, memory: Memory, layers: int) -> _Backbone:
    h = shape.hidden // shape.heads
    states = [torch.Size(part).numel() for part in _states(shape, memory)]
    if memory.rule == "attention":
        library = compiling.library("attention.c")
        functions = {"attention": "attention_forward", "attention_room": "attention_room"}
    else:
        library = rules.library(-(-h // rules.BLOCK), rules.source(memory.rule))
        functions = {name: f"{name}_forward" for name in _RULES[memory.rule]}
    addresses = {
        name: ctypes.cast(getattr(library, function), ctypes.c_void_p).value
        for name, function in functions.items()
    }
    return _Backbone(
        inputs=shape.inputs,
        clock=shape.clock,
        gates=shape.gates,
        d=shape.hidden,
        ff=shape.ff,
        heads=shape.heads,
        layers=layers,
        parts=len(memory.sizes),
        states=len(states),
        sizes=(ctypes.c_int64 * _PARTS)(*memory.sizes),
        activations=(ctypes.c_int64 * _PARTS)(*map(_ACTIVATIONS.index, memory.activations)),
        state_sizes=(ctypes.c_int64 * _STATES)(*states),
        steps=memory.steps,
        convolved=memory.convolved,
        gate=_GATES.index(memory.gate),
        memory=_KINDS.index(memory.kind),
        writes=memory.writes,
        rank=memory.rank,
        window=memory.window,
        kernel=KERNELS.index("softmax" if memory.normalise else "exp"),
        eps=shape.eps,
        epsilon=shape.epsilon,
        root_degree=memory.root_degree,
        head_eps=memory.head_eps,
        **addresses,
    )
