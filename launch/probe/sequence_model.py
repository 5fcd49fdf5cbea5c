"""Models that read tokens: a core between an embedding and a head, with its backbone or without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cores import State, make_core
from ...cores.attention import WindowMemory
from ...cores.backbone import FastWeightCore, check_sizes
from ...cores.gtrxl import RelativeMemory
from ...cores.hybrid import Hybrid
from ...cores.layer import Layer
from ...cores.options import memory_options_of
from ...cores.registry import find_core


@dataclass(frozen=True)
class SequenceSpec:
    """What a model of sequences is made of."""

    kind: Literal["core", "memory", "pairs"]
    """core: as agents have it. memory: that of one layer, without backbone. pairs: as in `KeyValueModel`"""
    symbols: tuple[int, ...]
    """vocabulary size of each symbol in a token; a token is their number in this mixed radix"""
    classes: int
    core: str
    core_options: Mapping[str, Any] = field(default_factory=dict)
    embedding_size: int | None = None
    """width of an embedded token; None for that of the core's output"""
    dropout: float = 0.0
    """while training: of what each sub-layer of a core adds, and of its hidden units; for a core without
    layers, of what goes in and what comes out (Irie et al. 2021, code of sections 4.2, 4.3)"""
    is_cut: bool = False
    """whether a sequence comes in spans, with the state carried over; if not, it comes whole"""


_AGES = {"window", "positions"}
"""options of attention that say how far back it sees"""


class SequenceModel(nn.Module):
    """Predicts a class at every token. Tokens `[T, B]` -> logits `[T, B, classes]`.

    Attention sees all earlier tokens of a sequence that comes whole, as `whole_sequence_memories` says.
    """

    def __init__(self, spec: SequenceSpec) -> None:
        super().__init__()
        self.spec = spec
        size = spec.embedding_size
        if size is None:
            with torch.device("meta"):  # asked for its width only
                size = make_core(spec.core, 1, **spec.core_options).output_size
        self.embedding = TokenEmbedding(spec.symbols, size)
        self.core = make_core(spec.core, size, **spec.core_options)
        self.head = nn.Linear(self.core.output_size, spec.classes)
        layers: list[Any] = [module for module in self.core.modules() if isinstance(module, Layer)]
        for layer in layers:
            for module in (layer.out, layer.ff[1], layer.ff[2]):
                _drop_from(module, spec.dropout)
        self._around = 0.0 if layers else spec.dropout
        self.opened = whole_sequence_memories(self, spec)
        """attention whose window is as long as the sequence"""

    def initial_state(self, batch_size: int) -> State:
        return self.core.initial_state(batch_size)

    def forward(self, tokens: Tensor, reset: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return logits and the state after the last token; `state` is the initial one if None."""
        if state is None:
            open_windows(self.opened, len(tokens))
            state = self.initial_state(tokens.shape[1])
        x = F.dropout(self.embedding(tokens), self._around, self.training)
        y, state = self.core.unroll(x, state, reset)
        return self.head(F.dropout(y, self._around, self.training)), state


def whole_sequence_memories(model: nn.Module, spec: SequenceSpec) -> list[WindowMemory]:
    """Return the attention whose window opens to all of a sequence, which comes whole: where no `window` is
    given, and no weights belong to ages within it, as those of positions do.
    """
    if spec.is_cut or _AGES & {*spec.core_options}:
        return []
    memories = [module for module in model.modules() if isinstance(module, WindowMemory)]
    of_layers = [
        layer
        for core in model.modules()
        if isinstance(core, Hybrid)
        for layer, options in zip(core.memories(), core.layer_options, strict=True)
        if _AGES & {*options}
    ]
    return [each for each in memories if each not in of_layers and not isinstance(each, RelativeMemory)]


def open_windows(memories: Iterable[WindowMemory], steps: int) -> None:
    for memory in memories:
        memory.window = steps


class TokenEmbedding(nn.Module):
    """Embeds each symbol of a token and adds them. Tokens -> `[..., size]`."""

    def __init__(self, symbols: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.symbols = symbols
        self.rows = nn.ModuleList(nn.Embedding(count, size) for count in symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        parts = []
        for rows, count in zip(reversed(self.rows), reversed(self.symbols), strict=True):
            parts.append(rows(tokens % count))
            tokens = tokens // count
        return sum(parts[1:], parts[0])


def _drop_from(module: nn.Module, share: float) -> None:
    """Zero a share of what a module puts out while it trains.

    By a hook: a module in between would rename the core's weights. PyTorch, not C, runs hooked modules.
    """
    if share:
        module.register_forward_hook(lambda module, _, output: F.dropout(output, share, module.training))


class MemoryModel(nn.Module):
    """One memory of a core without its backbone: `x + out(memory(slow(x)))`, with biases, between an
    embedding and a head (the listing of Zhong et al. 2025, section 10.4: no norms, no feedforward layer, no
    positions).

    Takes the options of the core's memory, its `hidden_size` and `num_heads`. A sequence comes whole, and
    attention sees it as in `SequenceModel`.

    Raises:
        ValueError: for a core that has no such memory, or sizes that cannot be.
    """

    SIZES: ClassVar[dict[str, Any]] = {"hidden_size": 128, "num_heads": 4}

    @classmethod
    def options_of(cls, core: str) -> tuple[str, ...]:
        """Return the names of the options that a core's memory takes here. Raises ValueError as above."""
        return *cls.SIZES, *memory_options_of(_memory_of(core))

    def __init__(self, spec: SequenceSpec) -> None:
        super().__init__()
        self.spec = spec
        kind = _memory_of(spec.core)
        options = {**self.SIZES, **spec.core_options}
        size, heads = options.pop("hidden_size"), options.pop("num_heads")
        check_sizes(size, heads)
        self.embedding = TokenEmbedding(spec.symbols, size)
        self.memory: Any = kind(size, heads, **options)
        self._opened = whole_sequence_memories(self, spec)
        self.memory.slow_net = nn.Linear(size, self.memory.slow_net.out_features)
        self.out = nn.Linear(size, size)
        self.head = nn.Linear(size, spec.classes)

    def forward(self, tokens: Tensor, reset: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return logits and an empty state."""
        open_windows(self._opened, len(tokens))
        x = self.embedding(tokens)
        nothing = [x.new_zeros(tokens.shape[1], *part.shape) for part in self.memory.layer_state_parts()]
        y, _ = self.memory(self.memory.slow_net(x), tuple(nothing), reset)
        return self.head(x + self.out(y)), ()


def _memory_of(core: str) -> Any:
    kind: Any = find_core(core)
    if not (isinstance(kind, type) and issubclass(kind, FastWeightCore) and hasattr(kind, "memory")):
        raise ValueError(f"{core} has no memory that could stand without a backbone")
    return kind.memory
