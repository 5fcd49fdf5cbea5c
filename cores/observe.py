"""Observe what each step does to the memory, by hooks: steps that nobody watches cost nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .backbone import FastWeightCore
from .base import Core
from .fast_weights import FastWeights, MemoryTrace


@dataclass(frozen=True)
class MemoryStep:
    """One step of one layer's memory, each tensor `[B, H]`."""

    write_strength: Tensor | None
    """Mean of the head's write strengths, over its channels or its writes in this step; None without any."""
    norm: Tensor
    """Frobenius norm of all of a head's fast weights after the step; 0 for attention, which has none."""
    change: Tensor
    """Frobenius norm of the step's change to them, relative to `norm`; 1 right after a reset."""


@contextmanager
def watch_memory(core: Core) -> Iterator[list[MemoryStep]]:
    """Yield a list with, for each layer, what the core's latest `step` did to its memory.

    Empty before the first step, and for cores outside the backbone, such as an LSTM. Attention is in the
    list, with norm and change 0.
    """
    steps: list[MemoryStep] = []

    def replace_step(index: int, memory: FastWeights, trace: MemoryTrace) -> None:
        steps[index : index + 1] = [_observe(memory, trace)]

    with watch_traces(core, replace_step):
        yield steps


@contextmanager
def watch_traces(core: Core, on_trace: Callable[[int, FastWeights, MemoryTrace], None]) -> Iterator[None]:
    """Call `on_trace` with a layer's number, its memory and its trace whenever the core has computed it.

    Not called by cores outside the backbone.
    """

    def pass_on(index: int, memory: FastWeights, _: Any, result: tuple[Tensor, MemoryTrace]) -> None:
        on_trace(index, memory, result[1])

    with ExitStack() as stack:
        for index, memory in enumerate(core.memories() if isinstance(core, FastWeightCore) else ()):
            hook = memory.register_forward_hook(partial(pass_on, index))
            stack.callback(hook.remove)
        yield


@contextmanager
def replaced_readings(core: Core, readings: Sequence[Tensor]) -> Iterator[None]:
    """Let each layer's memory read in a `step` what is given, whatever it would itself; nothing is written.

    Args:
        core: a core in the backbone.
        readings: for each layer `[B, H, h]`.

    Raises:
        ValueError: if there are not as many layers.
    """
    memories = core.memories() if isinstance(core, FastWeightCore) else []
    if len(readings) != len(memories):
        raise ValueError(f"readings of {len(readings)} layers; give one for each of {len(memories)}")
    with ExitStack() as stack:
        for memory, y in zip(memories, readings, strict=True):
            stack.enter_context(_replaced_reading(memory, y))
        yield


@contextmanager
def _replaced_reading(memory: FastWeights, y: Tensor) -> Iterator[None]:
    memory.unroll = lambda projections, state, reset: (y.unsqueeze(0), state)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del memory.unroll


@torch.no_grad()
def _observe(memory: FastWeights, trace: MemoryTrace) -> MemoryStep:
    continues = (~trace.reset[0]).to(trace.before[0].dtype).view(-1, 1, 1, 1)
    squares = changes = trace.y.new_zeros(trace.y.shape[1:3])  # stay 0 for attention
    before, after = memory.fast_weights(trace.before), memory.fast_weights(trace.after)
    for old, new in zip(before, after, strict=True):
        # some memories have several matrices a head
        squares = squares + new.square().sum((-2, -1)).view(*squares.shape, -1).sum(-1)
        changes = changes + (new - old * continues).square().sum((-2, -1)).view(*squares.shape, -1).sum(-1)
    beta = memory.strengths(trace).get("write_strength")
    strength = None if beta is None else beta.reshape(*squares.shape, -1).mean(-1)
    return MemoryStep(strength, squares.sqrt(), (changes / squares.clamp(min=1e-30)).sqrt())
