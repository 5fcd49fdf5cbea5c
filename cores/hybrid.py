"""Layers with different memories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .backbone import FastWeightCore
from .base import State
from .fast_weights import FastWeights
from .options import near_names
from .registry import core_name, core_names, find_core, register


@register("hybrid")
class Hybrid(FastWeightCore):
    """The backbone with another memory in each layer, as in language models since 2024.

    State: layer after layer, the tensors of its memory, `[B, 1, ...]` each.

    Args:
        layers: names of the cores whose memories the layers have, in order, with commas between; each has its
            default options. Of gtrxl it is the attention by content and age, without gates.

    Raises:
        ValueError: for a name that is not that of a memory in the backbone.
    """

    equation = "a memory for each layer, such as layers kda,gtrxl"
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
    memories = memories_by_core()
    if core_name(name) in memories:
        return memories[core_name(name)]
    raise ValueError(f"layers: {_why_not(name, memories)}")


def _why_not(name: str, memories: Mapping[str, type[FastWeights]]) -> str:
    """Say why a name is not that of a layer's memory, and what to give."""
    every = f"choose from {', '.join(memories)}"
    if not name:
        return "a name is empty; give names with one comma between"
    if core_name(name) not in core_names():
        return f"unknown memory {name!r}; {near_names(name, memories) or every}"
    memory = getattr(find_core(name), "memory", None)
    if same := next((first for first, its in memories.items() if its is memory), None):
        return f"{name} has the memory of {same}; give {same}"
    return f"{name} has no memory of its own in the backbone; {every}"


def memories_by_core() -> dict[str, type[FastWeights]]:
    """Return the memories of the registered cores in the backbone: each once, under its first name."""
    found: dict[str, type[FastWeights]] = {}
    for name in core_names():
        core = find_core(name)
        if isinstance(core, type) and issubclass(core, FastWeightCore):
            memory = getattr(core, "memory", None)
            if memory is not None and memory not in found.values():
                found[name] = memory
    return found
