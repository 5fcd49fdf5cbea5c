"""The memory of one layer: the base class of fast-weight memories and of attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import State, Stats, warn_of_new_name
from .linear_form import LinearForm
from .short_conv import ShortConvolution, check_short_conv

OutputGate = Literal["none", "silu", "sigmoid"]


class StatePart(NamedTuple):
    """One tensor of a layer's state."""

    kind: Literal["fast weights", "momentum", "normaliser", "output", "cache"]
    """Fast weights are the matrices that writes change, and whose norm is logged. Momentum averages past
    writes, a normaliser sums keys. An output was computed by an earlier step and is read again. A cache has
    recent inputs, or attention's keys and values."""
    shape: tuple[int, ...]
    """Its shape without the batch dimension."""


class MemoryTrace(NamedTuple):
    """Inputs and outputs of one layer's memory in an unroll."""

    projections: tuple[Tensor, ...]
    """The slow net's output split by `sizes`, each `[T, B, H, size]`."""
    before: State
    """The rule's state before the unroll, tensors `[B, ...]`."""
    after: State
    """The rule's state after the unroll, tensors `[B, ...]`."""
    y: Tensor
    """The rule's output `[T, B, H, h]`."""
    reset: Tensor
    """Which steps begin an episode: bool `[T, B]`."""
    conv_state: State = ()
    """State of `short_conv`, its last inputs `[B, size - 1, C]`; empty without it."""

    @property
    def state(self) -> State:
        """The whole state of the layer after the unroll."""
        return (*self.after, *self.conv_state)

    @property
    def emitted(self) -> tuple[Tensor, ...]:
        """The name of `projections` in version 0.2."""
        warn_of_new_name("emitted", "projections")
        return self.projections


class FastWeights(nn.Module, ABC):
    """The memory of one layer: a slow net emits each head's numbers, a rule of `kernels` writes and reads.

    Attention, too, is a subclass, whose state is a window of keys and values: `state_parts` says which
    state tensors are fast weights, if any.

    Subclasses take hidden_size and num_heads, then options of their own as keyword arguments with defaults.

    Args:
        hidden_size: d, the width of the layer's input and output.
        num_heads: H; each head is h = d/H wide.
        sizes: how many numbers the slow net emits per head, in order, e.g. q, k, v, β as (h, h, h, 1).
        short_conv: over how many steps of the episode, this one included, a causal convolution and SiLU mix
            q, k and v, in some cores others too (README.md); 0 for none.
        head_norm: whether what each head reads passes an RMSNorm, with one gain per channel for all heads.
        output_gate: activation of the output gate, a linear map of the layer's input that multiplies the
            result; or none.

    Raises:
        ValueError: for a short_conv out of range.
    """

    convolved: ClassVar[int] = 3
    """Number of projections that `short_conv` mixes, from the first on."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        sizes: tuple[int, ...],
        *,
        short_conv: int = 0,
        head_norm: bool = False,
        output_gate: OutputGate = "none",
    ) -> None:
        super().__init__()
        check_short_conv(short_conv)
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.sizes, self.output_gate = sizes, output_gate
        gate = () if output_gate == "none" else (hidden_size // num_heads,)
        self.emitted_sizes = (*sizes, *gate)
        self.slow_net = nn.Linear(hidden_size, num_heads * sum(self.emitted_sizes), bias=False)
        channels = num_heads * sum(sizes[: self.convolved])
        self.short_conv = ShortConvolution(channels, short_conv) if short_conv else None
        self.head_norm = nn.RMSNorm(hidden_size // num_heads, eps=1e-5) if head_norm else None

    def __init_subclass__(cls, **options: Any) -> None:
        """Leave a subclass that overrides `unroll` alone no form: the inherited one is of another rule."""
        super().__init_subclass__(**options)
        if overrides_only(cls, "unroll", "linear_form"):
            cls.linear_form = FastWeights.linear_form  # type: ignore[method-assign]

    @abstractmethod
    def state_parts(self) -> tuple[StatePart, ...]:
        """Declare the rule's state tensors, in order."""

    def layer_state_parts(self) -> tuple[StatePart, ...]:
        """Return this layer's state tensors, in order: the rule's, then the inputs of `short_conv`."""
        if self.short_conv is None:
            return self.state_parts()
        size, channels = self.short_conv.weight.shape
        return (*self.state_parts(), StatePart("cache", (size - 1, channels)))

    @abstractmethod
    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        """The slow net's output split by `sizes`, each `[T, B, H, size]` -> y `[T, B, H, h]`, next state."""

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        """Return what to log about an unroll's writes, by name: tensors whose mean is the metric."""
        return {}

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor | None:
        """Return κ(key, query) `[N]`: how much `query` `[h]` reads of what was written under `keys` `[N, h]`.

        Both as the slow net emits them, before the feature map; in recurrent cores for an output of zero, as
        after a reset. Only ratios matter: `deltabeast card` draws signal to noise from them. None if the two
        vectors do not decide it.
        """
        return None

    def linear_form(self, trace: MemoryTrace) -> LinearForm | None:
        """Return what the memory did in an unroll as a rule linear in its writes, with realised keys.

        What that rule reads is the output y, or where y is a nonlinear function of it, its argument. None if
        there is no such rule, and for a subclass that overrides `unroll` without this.
        """
        return None

    def form_columns(self) -> dict[int, int]:
        """Return which state tensors are columns of the linear form's W: their index, and the first column.

        By default the fast weights side by side, from column 0 on.
        """
        columns, first = {}, 0
        for index, part in enumerate(self.state_parts()):
            if part.kind == "fast weights":
                columns[index] = first
                first += part.shape[-1]
        return columns

    def fast_weights(self, state: State) -> list[Tensor]:
        """Select the fast weights from the state of the rule or of the layer; none for attention."""
        declared = zip(state, self.state_parts(), strict=False)
        return [tensor for tensor, part in declared if part.kind == "fast weights"]

    def forward(self, projected: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        """slow_net(x) `[T, B, n]` -> y `[T, B, d]` and the trace, with the state after."""
        # Rules compute in the state's dtype; kernels disable autocast (kernels/precision.py).
        heads = projected.to(state[0].dtype).unflatten(-1, (self.num_heads, -1))
        emitted = torch.split_with_sizes(heads, self.emitted_sizes, -1)
        projections, gate = emitted[: len(self.sizes)], emitted[len(self.sizes) :]
        before, conv_state = state, state[:0]
        if self.short_conv is not None:
            before = state[:-1]
            projections, conv_state = self._convolve(self.short_conv, projections, state[-1], reset)
        y, after = self.unroll(projections, before, reset)
        trace = MemoryTrace(projections, before, after, y, reset, conv_state)
        if self.head_norm is not None:
            y = F.rms_norm(y, y.shape[-1:], self.head_norm.weight.to(y.dtype), self.head_norm.eps)
        if gate:
            y = y * (F.silu(gate[0]) if self.output_gate == "silu" else gate[0].sigmoid())
        return y.flatten(-2).to(projected.dtype), trace

    def _convolve(
        self, conv: ShortConvolution, projections: tuple[Tensor, ...], last: Tensor, reset: Tensor
    ) -> tuple[tuple[Tensor, ...], State]:
        vectors = torch.cat(projections[: self.convolved], -1)
        mixed, last = conv(vectors.flatten(-2), last, reset)
        sizes = self.sizes[: self.convolved]
        mixed = torch.split_with_sizes(mixed.view_as(vectors), sizes, -1)
        return (*mixed, *projections[self.convolved :]), (last,)


def overrides_only(kind: type, method: str, form: str) -> bool:
    """Return whether the nearest class in `kind`'s order of bases with either of two methods lacks `form`."""
    nearest = next(vars(base) for base in kind.__mro__ if {method, form} & vars(base).keys())
    return form not in nearest


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
