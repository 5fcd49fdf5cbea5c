"""Layers with different memories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .backbone import FastWeightCore
from .base import State
from .fast_weights import FastWeights
from .registry import core_name, core_names, find_core, register


@register("hybrid")
class Hybrid(FastWeightCore):
    """The backbone with another memory in each layer, as in language models since 2024.

    State: layer after layer, the tensors of its memory, `[B, 1, ...]` each.

    Args:
        layers: names of the cores whose memories the layers have, in order, with commas between; each has its
            default options.

    Raises:
        ValueError: for a name that is no core in the backbone.
    """

    equation = "each layer has its own memory"
    source = "-"

    def __init__(
        self,
        input_size: int,
        layers: str = "delta_net,softmax_attention",
        hidden_size: int = 128,
        num_heads: int = 4,
        ff_size: int = 512,
    ) -> None:
        self.kinds = [_memory(name.strip()) for name in layers.split(",")]
        super().__init__(input_size, hidden_size, len(self.kinds), num_heads, ff_size)

    def make_memory(
        self, layer: int, hidden_size: int, num_heads: int, options: Mapping[str, Any]
    ) -> FastWeights:
        kind: Any = self.kinds[layer]  # subclasses set `sizes`, which the base class's constructor requires
        memory: FastWeights = kind(hidden_size, num_heads)
        return memory

    def split(self, state: State) -> Iterable[State]:
        parts = iter(state)
        return [
            tuple(next(parts).squeeze(1) for _ in memory.layer_state_parts()) for memory in self.memories()
        ]

    def join(self, states: Sequence[State]) -> State:
        return tuple(part.unsqueeze(1) for state in states for part in state)


def _memory(name: str) -> type[FastWeights]:
    name = core_name(name)
    if name in memories_by_core():
        return memories_by_core()[name]
    raise ValueError(f"layers: {name!r} is no memory of a layer; choose from {', '.join(memories_by_core())}")


def memories_by_core() -> dict[str, type[FastWeights]]:
    """Return the memories of the registered cores in the backbone as it is, by name."""
    found = {}
    for name in core_names():
        core = find_core(name)
        if isinstance(core, type) and issubclass(core, FastWeightCore):
            memory = getattr(core, "memory", None)
            if memory is not None and name not in ("rdn_large", "gtrxl", "transformer"):
                found[name] = memory
    return found
