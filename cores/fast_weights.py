"""The fast-weight memory of one layer: the base class of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from .base import State, Stats, warn_of_new_name


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

    projections: tuple[Tensor, ...]
    """the slow net's output split by `sizes`, each `[T, B, H, size]`"""
    before: State
    after: State
    y: Tensor
    """`[T, B, H, h]`"""
    reset: Tensor
    """`[T, B]`"""

    @property
    def emitted(self) -> tuple[Tensor, ...]:
        """The name of `projections` in version 0.2."""
        warn_of_new_name("emitted", "projections")
        return self.projections


class FastWeights(nn.Module, ABC):
    """Fast-weight memory of one layer: a slow net emits each head's numbers, a rule of `kernels` uses them.

    Subclasses take hidden_size and num_heads, then options of their own as keyword arguments with defaults.

    Args:
        hidden_size: d, the width of the layer's input and output.
        num_heads: H; each head is h = d/H wide.
        sizes: how many numbers the slow net emits per head, in order, e.g. q, k, v, β as (h, h, h, 1).
    """

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

    def forward(self, projected: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        """slow_net(x) `[T, B, H sum(sizes)]` -> y `[T, B, d]` and the trace, with the state after."""
        # Fast weights keep their precision under autocast, and kernels keep out of it.
        heads = projected.to(state[0].dtype).unflatten(-1, (self.num_heads, -1))
        parts = torch.split_with_sizes(heads, self.sizes, -1)
        y, next_state = self.unroll(parts, state, reset)
        return y.flatten(-2).to(projected.dtype), MemoryTrace(parts, state, next_state, y, reset)


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
