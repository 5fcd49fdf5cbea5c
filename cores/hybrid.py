"""Layers with different memories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from .backbone import FastWeightCore, Residual
from .base import State
from .fast_weights import FastWeights
from .options import Normalized, check_options, memory_options_of, near_names, options_of
from .registry import core_name, core_names, find_core, register


def normalize_layers(layers: str) -> str:
    """Write layers without spaces, names with underscores, options in alphabetical order.

    Raises:
        ValueError: for a name that is not that of a memory in the backbone, or options it does not have.
    """
    return ",".join(
        ":".join([name, *(f"{option}={_written(value)}" for option, value in sorted(own.items()))])
        for name, _, own in map(_read_layer, layers.split(","))
    )


def _written(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@register("hybrid")
class Hybrid(FastWeightCore):
    """The backbone with another memory in each layer, as in language models since 2024.

    State: layer after layer, the tensors of its memory, `[B, 1, ...]` each.

    Args:
        layers: names of the cores whose memories the layers have, in order, with commas between. Options of a
            layer's memory follow its name: `kda:short_conv=4,gtrxl:window=128`. gtrxl gives its attention
            alone; for its gates add `residual gate`. `kda,gtrxl` was best in results/suite.

    Raises:
        ValueError: for a name that is not that of a memory in the backbone, or options it does not have.
    """

    equation = "a memory for each layer, such as layers kda,gtrxl"
    source = "-"

    def __init__(
        self,
        input_size: int,
        layers: Annotated[str, Normalized(normalize_layers)] = "delta_net,softmax_attention",
        hidden_size: int = 128,
        num_heads: int = 4,
        ff_size: int = 512,
        residual: Residual = "sum",
        clock: int = 0,
    ) -> None:
        self._kinds = [_read_layer(layer) for layer in layers.split(",")]
        self.layer_options = [own for *_, own in self._kinds]
        """options given to each layer's memory"""
        super().__init__(input_size, hidden_size, len(self._kinds), num_heads, ff_size, residual, clock)

    def make_memory(
        self, layer: int, hidden_size: int, num_heads: int, options: Mapping[str, Any]
    ) -> FastWeights:
        name, kind, own = self._kinds[layer]
        try:
            return kind(hidden_size, num_heads, **own)
        except ValueError as error:
            raise ValueError(f"layers: {name}: {error}") from error

    def split(self, state: State) -> Iterable[State]:
        parts = iter(state)
        return [
            tuple(next(parts).squeeze(1) for _ in memory.layer_state_parts()) for memory in self.memories()
        ]

    def join(self, states: Sequence[State]) -> State:
        return tuple(part.unsqueeze(1) for state in states for part in state)


def _read_layer(text: str) -> tuple[str, Callable[..., FastWeights], dict[str, Any]]:
    """Read `name` or `name:option=value:option=value`: a layer's name, its memory's class and options."""
    name, *given = (part.strip() for part in text.split(":"))
    memories = memories_by_core()
    if core_name(name) not in memories:
        raise ValueError(f"layers: {_why_not(name, memories)}")
    memory = memories[core_name(name)]
    values: dict[str, str] = {}
    for option, equals, value in (each.partition("=") for each in given):
        if not option or not equals:
            raise ValueError(f"layers: {text.strip()!r} is not NAME:OPTION=VALUE, such as kda:short_conv=4")
        if option in values:
            raise ValueError(f"layers: {option} of {name} is given twice; give one value for it")
        if option not in memory_options_of(memory) and option in options_of(Hybrid):
            raise ValueError(
                f"layers: {option} is of the whole core; give it beside layers: {option} {value}"
            )
        values[option] = value
    own = check_options(f"layers: {name}", memory_options_of(memory), values, parse=True)
    return core_name(name), memory, own


def _why_not(name: str, memories: Mapping[str, type[FastWeights]]) -> str:
    """Say why a name is not that of a layer's memory, and what to give."""
    every = f"choose from {', '.join(memories)}"
    if not name:
        return "a name is empty; give names with one comma between"
    if "=" in name:
        return f"{name} is an option; join it to its layer by a colon, as in kda:short_conv=4"
    if core_name(name) not in core_names():
        return f"unknown memory {name!r}; {near_names(core_name(name).lower(), memories) or every}"
    memory = getattr(find_core(name), "memory", None)
    if same := next((first for first, its in memories.items() if its is memory), None):
        return f"{name} has the memory of {same}; give {same}"
    return f"{name} has no memory of its own in the backbone; {every}"


def memories_by_core() -> dict[str, type[FastWeights]]:
    """Return the memories of the registered cores in the backbone: each once, under its first name."""
    memories: dict[str, type[FastWeights]] = {}
    for name in core_names():
        core = find_core(name)
        if isinstance(core, type) and issubclass(core, FastWeightCore):
            memory = getattr(core, "memory", None)
            if memory is not None and memory not in memories.values():
                memories[name] = memory
    return memories
