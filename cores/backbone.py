"""The pre-LayerNorm Transformer around every fast-weight core.

    x = InputProj(input)
    a layer:  x = x + Out(FastWeights(LN x));  x = x + FF(LN x)

Options put gates in place of the sums, and sinusoidal time features beside the input; there is no other
positional encoding, no dropout and no final LayerNorm. A layer runs over the whole `[T, B, d]` sequence
before the next one begins, so that only the fast weights themselves ever loop over time.
A core adds one `FastWeights` subclass: how the slow net's output becomes writes and reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .base import Core, State, Stats, check_not_empty
from .fast_weights import FastWeights, MemoryTrace, measure
from .layer import GRUGatedBlock, Layer

Residual = Literal["sum", "gate"]
MAX_CLOCK = 22
"""Maximum number of sine and cosine pairs: float32 counts their longest period, 2**23 steps, exactly."""


class FastWeightCore(Core):
    """Input projection and `num_layers` layers. Subclasses name their `FastWeights` as `memory`.

    State: a tensor `[B, L, ...]` for each of the memory's `layer_state_parts()`, L being the layers; with
    time features the time `[B, 1]` besides.

    Args:
        input_size: width of the input vectors.
        hidden_size: d, the width of the residual stream and of the output.
        num_layers: number of layers.
        num_heads: H; each head is d/H wide.
        ff_size: hidden width of the feedforward sub-layers.
        residual: sum, or gate: a GRU's gates in place of each sum (Parisotto et al. 2019).
        clock: number of sine and cosine pairs of the time in the episode that each step reads beside its
            input, with periods of 4, 8, 16, ... steps.
        memory_options: keyword arguments of `memory`, whose docstring says what they do.

    Raises:
        ValueError: for a size below 1, a hidden_size that the heads do not divide, or a clock out of range.
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
        residual: Residual = "sum",
        clock: int = 0,
        **memory_options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 <= clock <= MAX_CLOCK:
            raise ValueError(f"clock is {clock}; give 1 to {MAX_CLOCK} sine and cosine pairs, or 0 for none")
        check_sizes(hidden_size, num_heads, num_layers=num_layers, ff_size=ff_size)
        self.clock = clock
        self.input_proj = nn.Linear(input_size + 2 * clock, hidden_size)
        layer = GRUGatedBlock if residual == "gate" else Layer
        self.layers = nn.ModuleList(
            layer(self.make_memory(i, hidden_size, num_heads, memory_options), hidden_size, ff_size)
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
        factory_kwargs: Any = {"dtype": dtype, "device": device or weight.device}
        return self.join(
            [
                tuple(
                    torch.zeros(batch_size, *part.shape, **factory_kwargs)
                    for part in memory.layer_state_parts()
                )
                for memory in self.memories()
            ]
        ) + ((torch.zeros(batch_size, 1, **factory_kwargs),) if self.clock else ())

    def split(self, state: State) -> Iterable[State]:
        """Split the state into the layers' shares, each tensor `[B, ...]`."""
        return zip(*(part.unbind(1) for part in state), strict=True)

    def join(self, states: Sequence[State]) -> State:
        """Undo `split`; each layer's share stays contiguous."""
        return tuple(torch.stack(parts).transpose(0, 1) for parts in zip(*states, strict=True))

    def memories(self) -> list[FastWeights]:
        """Return the memory of each layer."""
        return [layer.memory for layer in self.layers]  # type: ignore[misc]

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, state, _ = self._run(x, state, reset)
        return y, state

    def unroll_with_stats(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        y, state, traces = self._run(x, state, reset)
        return y, state, measure(self.memories(), traces)

    def with_time(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, State]:
        """Return the input with sinusoids of the time `[T, B, n + 2 clock]`, the layers' state, and the time
        `[B, 1]` after the unroll; without a clock the input `[T, B, n]`, the state, and nothing.

        Raises:
            ValueError: with a clock, for an empty unroll, or a time or resets of another batch.
        """
        if not self.clock:
            return x, state, ()
        check_not_empty(x)
        *state_of_layers, time = state
        _check_time(x, time, reset)
        times, time = _episode_time(time, reset)
        return torch.cat((x, _sinusoids(times, self.clock).to(x.dtype)), -1), tuple(state_of_layers), (time,)

    def _run(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, list[MemoryTrace]]:
        x, state, time = self.with_time(x, state, reset)
        y, after, traces = self._run_layers(x, state, reset)
        return y, (*after, *time), traces

    def _run_layers(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, list[MemoryTrace]]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Tensors made in inference_mode, as by an actor, could not be differentiated.
            state = tuple(part.clone() if part.is_inference() else part for part in state)
        x, traces = self.input_proj(x), []
        for layer, layer_state in zip(self.layers, self.split(state), strict=True):
            x, trace = layer(x, layer_state, reset)
            traces.append(trace)
        return x, self.join([trace.state for trace in traces]), traces


def _check_time(x: Tensor, time: Tensor, reset: Tensor) -> None:
    """Raise ValueError for a time or resets of another batch than x, which would be broadcast."""
    steps, rows, _ = x.shape
    if reset.dtype is not torch.bool or reset.shape != (steps, rows):
        raise ValueError(
            f"clock: reset is {reset.dtype} {list(reset.shape)}; give torch.bool {[steps, rows]}"
        )
    if time.shape != (rows, 1):
        raise ValueError(f"clock: time is {list(time.shape)}; give {[rows, 1]}")


def _episode_time(time: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Return at what time of its episode each step is `[T, B]`, and the time after the last one `[B, 1]`."""
    t = torch.arange(len(reset), device=reset.device).unsqueeze(-1)
    begun = torch.where(reset, t, -1).cummax(0).values
    times = torch.where(begun < 0, t + time.squeeze(-1), t - begun)
    return times, times[-1].unsqueeze(-1) + 1


def _sinusoids(times: Tensor, count: int) -> Tensor:
    """Return cosines and sines of times, with periods of 4, 8, ... steps: `[T, B]` -> `[T, B, 2 count]`."""
    periods = 2.0 ** torch.arange(2, count + 2, device=times.device)
    phases = 2 * math.pi * (times.unsqueeze(-1) % periods) / periods
    return torch.cat((phases.cos(), phases.sin()), -1)


def check_sizes(hidden_size: int, num_heads: int, **others: int) -> None:
    """Raise ValueError for a size below 1, or heads that do not share the hidden units equally."""
    for name, size in {**others, "num_heads": num_heads, "hidden_size": hidden_size}.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if hidden_size % num_heads:
        near = max(hidden_size // num_heads, 1) * num_heads
        raise ValueError(
            f"hidden_size {hidden_size} is not divisible by num_heads {num_heads}; try hidden_size {near}"
        )
