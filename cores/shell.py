"""The pre-LayerNorm Transformer around every fast-weight core.

    x = InputProj(input)
    a layer:  x = x + Out(FastWeights(LN x));  x = x + FF(LN x)

There is no dropout, final LayerNorm or positional encoding. A layer runs over the whole `[T, B, d]`
sequence before the next one begins, so that only the fast weights themselves ever loop over time.
A core adds one `FastWeights` subclass: how the slow net's output becomes writes and reads.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..kernels.native import dense, known
from ..kernels.native import shell as native
from ..kernels.native.known import Kept
from ..kernels.native.shell import StepRule
from .base import Core, State, Stats
from .features import EPSILON


class StatePart(NamedTuple):
    """One tensor of a layer's state."""

    kind: Literal["fast weights", "momentum", "normaliser", "output", "cache"]
    """Fast weights are the matrices that writes change, and whose norm is logged. Momentum averages past
    writes, a normaliser adds up keys. An output was computed by an earlier step and is read again. A cache
    holds recent inputs."""
    shape: tuple[int, ...]
    """without the batch"""


class MemoryTrace(NamedTuple):
    """Inputs and outputs of one layer's memory in an unroll."""

    emitted: tuple[Tensor, ...]
    """the slow net's output split by `sizes`, each `[T, B, H, size]`"""
    before: State
    after: State
    y: Tensor
    """`[T, B, H, h]`"""
    reset: Tensor
    """`[T, B]`"""
    known: tuple[Tensor, ...] = ()
    """what an actor kept of the memory's own arithmetic, `[T, ...]` each"""


class FastWeights(nn.Module, ABC):
    """Fast-weight memory of one layer: a slow net emits each head's numbers, a rule of `kernels` uses them.

    Subclasses take hidden_size and num_heads, then options of their own as keyword arguments with defaults.

    Args:
        hidden_size: d, the width of the layer's input and output.
        num_heads: H; each head's fast weights are h = d/H wide.
        sizes: how many numbers the slow net emits per head, in order, e.g. q, k, v, β as (h, h, h, 1).
    """

    computing: ClassVar[tuple[str, ...]] = ("unroll",)
    """the methods that `step_rule` stands for: it is not asked where a subclass has replaced one of them"""

    def __init__(self, hidden_size: int, num_heads: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.sizes = sizes
        self.slow_net = nn.Linear(hidden_size, num_heads * sum(sizes), bias=False)

    @abstractmethod
    def state_parts(self) -> tuple[StatePart, ...]:
        """Declare this layer's state tensors, in order."""

    @abstractmethod
    def unroll(self, parts: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        """The slow net's output split by `sizes`, each `[T, B, H, size]` -> y `[T, B, H, h]`, next state."""

    def step_rule(self) -> StepRule | None:
        """Say what `unroll` computes, if C can do the same for an actor's step; stands beside `unroll`."""
        return None

    def known_unroll(
        self, parts: tuple[Tensor, ...], state: State, reset: Tensor, values: Sequence[Tensor], after: State
    ) -> tuple[Tensor, State]:
        """Do as `unroll` where a rule's own arithmetic was kept as `values`, and the state that it left."""
        return self.unroll(parts, state, reset)

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        """Return what to log about an unroll's writes, by name: tensors whose mean is the metric."""
        return {}

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor | None:
        """Return how much `query` `[h]` reads of what was written under each of `keys` `[N, h]`, relative to
        one another: κ of the two; None where it depends on more."""
        return None

    def fast_weights(self, state: State) -> list[Tensor]:
        """Select the state tensors that are fast weights."""
        declared = zip(state, self.state_parts(), strict=True)
        return [tensor for tensor, part in declared if part.kind == "fast weights"]

    def forward(
        self, emitted: Tensor, state: State, reset: Tensor, values: Sequence[Tensor] = (), after: State = ()
    ) -> tuple[Tensor, MemoryTrace]:
        """slow_net(x) `[T, B, H sum(sizes)]` -> y `[T, B, d]` and the trace, with the state after.

        `values` and `after` are known, or empty.
        """
        # Fast weights keep their precision under autocast, and kernels keep out of it.
        if emitted.dtype is not state[0].dtype:
            emitted = emitted.to(state[0].dtype)
        emitted = emitted.unflatten(-1, (self.num_heads, -1))
        parts = torch.split_with_sizes(emitted, self.sizes, -1)
        if values:
            y, next_state = self.known_unroll(parts, state, reset, values, after)
        else:
            y, next_state = self.unroll(parts, state, reset)
        return y.flatten(-2), MemoryTrace(parts, state, next_state, y, reset, tuple(values))


@torch.no_grad()
def measure(memories: Sequence[FastWeights], traces: Sequence[MemoryTrace]) -> Stats:
    """Average strengths and norms of the fast weights over all layers and matrices."""
    values: dict[str, list[Tensor]] = {}
    for memory, trace in zip(memories, traces, strict=True):
        for name, strength in memory.strengths(trace).items():
            values.setdefault(name, []).append(strength.detach().mean())
        for W in memory.fast_weights(trace.after):
            norm = torch.linalg.vector_norm(W, dim=(-2, -1)).mean()
            values.setdefault("fast_weight_norm", []).append(norm)
    return {name: torch.stack(each).mean() for name, each in values.items()}


class Layer(nn.Module):
    """One layer of the shell: a fast-weight sub-layer and a feedforward one, each added to its input."""

    def __init__(self, memory: FastWeights, hidden_size: int, ff_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.memory = memory
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.ff_norm = nn.LayerNorm(hidden_size)
        self.ff = nn.Sequential(nn.Linear(hidden_size, ff_size), nn.ReLU(), nn.Linear(ff_size, hidden_size))

    def forward(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        modules: Any = self._modules.values()
        norm, memory, out, ff_norm, _ = modules
        weights = self.weights()
        if weights and dense.takes(x, weights):
            y, trace = memory(dense.normalized_linear(x, norm.eps, *weights[:4]), state, reset)
            return dense.residual_feedforward(x, y, ff_norm.eps, *weights[4:]), trace
        y, trace = memory(memory.slow_net(norm(x)), state, reset)
        x = x + out(y)
        return x + self.ff(ff_norm(x)), trace

    def in_c(self) -> tuple[Any, list[Any]]:
        """Return what C must know of this layer, and its parameters; None and none where C cannot step it."""
        if type(self) is not Layer:
            return None, []
        modules: Any = self._modules.values()
        norm, memory, _, ff_norm, _ = modules
        weights = self.weights()
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in (self, memory))
        rule = memory.step_rule() if _same_in_c(memory.__class__) else None
        if not weights or rule is None or hooked:
            return None, []
        kind = memory.num_heads, norm.eps, ff_norm.eps, rule.rule, rule.maps, rule.degree
        return kind, [*weights, *rule.slow, *[None] * (4 - len(rule.slow))]

    def known(
        self,
        x: Tensor,
        state: State,
        reset: Tensor,
        values: Sequence[Tensor],
        after: State,
        weights: list[Any],
    ) -> tuple[Tensor, MemoryTrace]:
        """Do as `forward`; `values` has the slow net's output, the three of `known.residual_feedforward`, and
        what the memory kept."""
        modules: Any = self._modules.values()
        norm, memory, _, ff_norm, _ = modules
        emitted, *others = values[:4]
        emitted = known.normalized_linear(emitted, x, norm.eps, *weights[:4])
        y, trace = memory(emitted, state, reset, values[4:], after)
        return known.residual_feedforward(others, x, y, ff_norm.eps, *weights[4:12]), trace

    def weights(self) -> list[Any]:
        """List the parameters but for the memory's own; none at all if a module is not as made."""
        modules: Any = self._modules.values()
        norm, memory, out, ff_norm, ff = modules
        return _weights(norm, memory._modules["slow_net"], out, ff_norm, *ff._modules.values(), kinds=_LAYER)


_LAYER = (nn.LayerNorm, nn.Linear, nn.Linear, nn.LayerNorm, nn.Linear, nn.ReLU, nn.Linear)


def _weights(*modules: Any, kinds: tuple[type[nn.Module], ...]) -> list[Any]:
    """List the modules' parameters, None for each that is missing; none at all if a module is of another kind
    or hooked.

    Reads them where `nn.Module` keeps them: its attributes take a good part of an actor's step to find.
    """
    weights: list[Any] = []
    if tuple(map(type, modules)) != kinds:
        return []
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks:
            return []
        if type(module) is nn.LayerNorm and module._parameters["bias"] is None:
            return []
        weights.extend(module._parameters.values())
    return weights


@functools.cache
def _same_in_c(memory: type[FastWeights]) -> bool:
    """Return whether `step_rule` speaks of this memory's `unroll`, not of one that a subclass replaced."""

    def owner(name: str) -> int:
        return next(i for i, each in enumerate(memory.__mro__) if name in vars(each))

    own = all(owner("step_rule") <= owner(name) for name in memory.computing)
    return own and memory.forward is FastWeights.forward


class FastWeightCore(Core):
    """The shell: input projection and `num_layers` layers. Subclasses name their `FastWeights` as `memory`.

    The state has one tensor for each of the memory's, batch first and layers stacked at dim 1.

    Args:
        input_size: width of the input vectors.
        hidden_size: d, the width of the residual stream and of the output.
        num_layers: number of layers.
        num_heads: H; each head's fast weights are d/H wide.
        ff_size: hidden width of the feedforward sub-layers.
        memory_options: keyword arguments of `memory`, whose docstring says what they do.

    Raises:
        ValueError: for a size below 1, or a hidden_size that the heads do not divide.
    """

    has_fast_weights: ClassVar[bool] = True
    memory: type[FastWeights]
    layer: ClassVar[type[Layer]] = Layer

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        ff_size: int = 512,
        **memory_options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size)
        sizes = {
            "num_layers": num_layers,
            "num_heads": num_heads,
            "ff_size": ff_size,
            "hidden_size": hidden_size,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        if hidden_size % num_heads:
            near = max(hidden_size // num_heads, 1) * num_heads
            raise ValueError(
                f"hidden_size {hidden_size} is not divisible by num_heads {num_heads}; try hidden_size {near}"
            )
        self.input_proj = nn.Linear(input_size, hidden_size)
        self.layers = nn.ModuleList(
            self.layer(self.make_memory(i, hidden_size, num_heads, memory_options), hidden_size, ff_size)
            for i in range(num_layers)
        )

    def make_memory(
        self, layer: int, hidden_size: int, num_heads: int, options: Mapping[str, Any]
    ) -> FastWeights:
        """Make the memory of a layer, by default the same for all."""
        return self.memory(hidden_size, num_heads, **options)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        weight = self.input_proj.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        made: Any = {"dtype": dtype, "device": device or weight.device}
        return self.join(
            [
                tuple(torch.zeros(batch_size, *part.shape, **made) for part in memory.state_parts())
                for memory in self.memories()
            ]
        )

    def split(self, state: State) -> Iterable[State]:
        """Split the state into the layers' shares, each tensor `[B, ...]`."""
        return zip(*(part.unbind(1) for part in state), strict=True)

    def join(self, states: Sequence[State]) -> State:
        """Undo `split`; each layer's share stays contiguous."""
        return tuple(torch.stack(parts).transpose(0, 1) for parts in zip(*states, strict=True))

    def memories(self) -> list[FastWeights]:
        """Return the memory of each layer."""
        return [layer.memory for layer in self.layers]  # type: ignore[misc]

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self._step_in_c(x, state, reset) or super().step(x, state, reset)

    def new_kept(self, steps: int, batch_size: int) -> Kept | None:
        plan = self._plan()
        return None if plan is None else native.new_kept(plan, steps, batch_size)

    def keeping_step(self, x: Tensor, state: State, reset: Tensor, kept: Kept) -> tuple[Tensor, State]:
        return native.step(kept.prepared[0], x, state, reset, kept) or self.step(x, state, reset)

    def _step_in_c(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State] | None:
        """Do as `step` in one call; None where something is not as made, or not for C."""
        plan = None if torch.is_grad_enabled() else self._plan()
        return None if plan is None else native.step(plan, x, state, reset)

    def _plan(self) -> native.Plan | None:
        """Prepare steps in C; None if something is not as made, or layers differ."""
        weights = _weights(self.input_proj, kinds=(nn.Linear,))
        kinds: set[Any] = set() if weights else {None}
        layers: Any = self.layers._modules.values()
        for layer in layers:
            kind, each = layer.in_c()
            kinds.add(kind)
            weights += each
        if len(kinds) > 1 or None in kinds:
            return None
        heads, eps, ff_eps, rule, maps, degree = kinds.pop()
        shape = native.Shape(self.input_size, self.output_size, len(weights[10]), heads, eps, EPSILON, degree)
        return native.plan(shape, rule, maps, weights) if eps == ff_eps else None

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, state, _ = self._run(x, state, reset)
        return y, state

    def measured_unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        y, state, traces = self._run(x, state, reset)
        return y, state, measure(self.memories(), traces)

    def known_unroll(self, x: Tensor, state: State, reset: Tensor, kept: Kept) -> tuple[Tensor, State, Stats]:
        plan = self._plan()
        if plan is None or not kept.knows(x, plan.weights):
            return self.measured_unroll(x, state, reset)
        weights: list[Any] = list(plan.weights)
        stream, emitted, middle, hidden, *inside = kept.tensors
        x = known.linear(stream[0], x, *weights[:2])

        def run(i: int, x: Tensor, state: State) -> tuple[Tensor, MemoryTrace]:
            layer: Any = self.layers[i]
            values = emitted[i], middle[i], hidden[i], stream[i + 1], *(each[i] for each in inside)
            after = tuple(part[i] for part in kept.after)
            return layer.known(x, state, reset, values, after, weights[2 + 16 * i :])

        y, state, traces = self._through_layers(run, x, state)
        return y, state, measure(self.memories(), traces)

    def _run(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, list[MemoryTrace]]:
        weights = _weights(self.input_proj, kinds=(nn.Linear,))
        taken = weights and dense.takes(x, weights)
        x = dense.linear(x, *weights) if taken else self.input_proj(x)
        return self._through_layers(lambda i, *inputs: self.layers[i](*inputs, reset), x, state)

    def _through_layers(
        self, run: Callable[[int, Tensor, State], tuple[Tensor, MemoryTrace]], x: Tensor, state: State
    ) -> tuple[Tensor, State, list[MemoryTrace]]:
        """Run layer after layer, each with its share of the state."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Tensors made in inference_mode, as by an actor, could not be differentiated.
            state = tuple(part.clone() if part.is_inference() else part for part in state)
        traces = []
        for i, layer_state in enumerate(self.split(state)):
            x, trace = run(i, x, layer_state)
            traces.append(trace)
        return x, self.join([trace.after for trace in traces]), traces
