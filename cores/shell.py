"""The pre-LayerNorm Transformer around every fast-weight core.

    x = InputProj(input)
    a layer:  x = x + Out(FastWeights(LN x));  x = x + FF(LN x)

There is no dropout, no final LayerNorm, no positional encoding. A layer runs over the whole `[T, B, d]`
sequence before the next one begins, so that only the fast weights themselves ever loop over time.
A core adds one `FastWeights` subclass: how the slow net's output becomes writes and reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import Core, State

Stats = dict[str, list[Tensor]]
"""Scalars by name, one a layer or fast-weight matrix."""


class FastWeights(nn.Module, ABC):
    """Fast-weight memory of one layer: a slow net emits each head's numbers, a rule of `kernels` uses them.

    `sizes` gives what the slow net emits per head, in order, e.g. q, k, v, β as (h, h, h, 1).
    """

    def __init__(self, hidden_size: int, num_heads: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.sizes = sizes
        self.slow_net = nn.Linear(hidden_size, num_heads * sum(sizes), bias=False)

    @abstractmethod
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of this layer's state tensors, without the batch. Fast weights come first."""

    @abstractmethod
    def unroll(self, parts: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        """The slow net's output split by `sizes`, each `[T, B, H, size]` -> y `[T, B, H, h]`, next state."""

    def strengths(
        self, parts: tuple[Tensor, ...], state: State, y: Tensor, reset: Tensor
    ) -> dict[str, Tensor]:
        """What to log about the writes of an `unroll` that took these and gave y: tensors to average."""
        return {}

    def emit(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The slow net's output for x `[T, B, d]`, split by `sizes`, each `[T, B, H, size]`."""
        # Fast weights keep their precision under autocast, and kernels keep out of it.
        emitted: Tensor = self.slow_net(x).to(dtype).unflatten(-1, (self.num_heads, -1))
        return emitted.split(self.sizes, -1)

    def forward(self, x: Tensor, state: State, reset: Tensor, stats: Stats | None) -> tuple[Tensor, State]:
        """x `[T, B, d]` -> y `[T, B, d]` and the layer's next state; appends to `stats` unless None."""
        parts = self.emit(x, state[0].dtype)
        y, next_state = self.unroll(parts, state, reset)
        if stats is not None:
            self._measure(stats, next_state, self.strengths(parts, state, y, reset))
        return y.flatten(-2), next_state

    @torch.no_grad()
    def _measure(self, stats: Stats, state: State, strengths: dict[str, Tensor]) -> None:
        for name, values in strengths.items():
            stats.setdefault(name, []).append(values.detach().mean())
        for part, shape in zip(state, self.state_shapes(), strict=True):
            if len(shape) == 3:  # fast weights, not outputs
                norm = torch.linalg.vector_norm(part, dim=(-2, -1)).mean()
                stats.setdefault("fast_weight_norm", []).append(norm)


class Layer(nn.Module):
    """One layer of the shell: a fast-weight sub-layer and a feedforward one, each added to its input."""

    def __init__(self, memory: FastWeights, hidden_size: int, ff_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.memory = memory
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.ff_norm = nn.LayerNorm(hidden_size)
        self.ff = nn.Sequential(nn.Linear(hidden_size, ff_size), nn.ReLU(), nn.Linear(ff_size, hidden_size))

    def forward(self, x: Tensor, state: State, reset: Tensor, stats: Stats | None) -> tuple[Tensor, State]:
        y, state = self.memory(self.norm(x), state, reset, stats)
        x = x + self.out(y)
        return x + self.ff(self.ff_norm(x)), state


class FastWeightCore(Core):
    """The shell: input projection and `num_layers` layers. Subclasses name their `FastWeights` as `memory`.

    Its state is one tensor for each of the memory's, batch first and layers stacked at dim 1.

    Args:
        input_size: width of the input vectors.
        hidden_size: d, the width of the residual stream and of the output.
        num_layers: number of layers.
        num_heads: H; each head's fast weights are d/H wide.
        ff_size: hidden width of the feedforward sub-layers.

    Raises:
        ValueError: for a size below 1, or a hidden_size that the heads do not divide.
    """

    has_fast_weights: ClassVar[bool] = True
    memory: type[FastWeights]

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        ff_size: int = 512,
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
            Layer(self.memory(hidden_size, num_heads), hidden_size, ff_size)  # type: ignore[call-arg]
            for _ in range(num_layers)
        )

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        weight = self.input_proj.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        shapes = self.layers[0].memory.state_shapes()  # type: ignore[union-attr, operator]
        return tuple(
            torch.zeros(
                len(self.layers), batch_size, *shape, dtype=dtype, device=device or weight.device
            ).transpose(0, 1)  # each layer's share stays contiguous
            for shape in shapes
        )

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self._run(x, state, reset, measure=True)

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        # A learner that cuts gradients steps too; actors, who take none, need no statistics.
        measure = torch.is_grad_enabled()
        y, state = self._run(x.unsqueeze(0), state, reset.unsqueeze(0), measure)
        return y.squeeze(0), state

    def _run(self, x: Tensor, state: State, reset: Tensor, measure: bool) -> tuple[Tensor, State]:
        stats: Stats | None = {} if measure else None
        x = self.input_proj(x)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # what actors hand over from inference_mode could not be differentiated
            state = tuple(part.clone() if part.is_inference() else part for part in state)
        layer_states = zip(*(part.unbind(1) for part in state), strict=True)
        next_states = []
        for layer, layer_state in zip(self.layers, layer_states, strict=True):
            x, layer_state = layer(x, layer_state, reset, stats)
            next_states.append(layer_state)
        if stats is not None:
            self.stats = {name: torch.stack(values).mean() for name, values in stats.items()}
        return x, tuple(torch.stack(parts).transpose(0, 1) for parts in zip(*next_states, strict=True))
