"""What a step does to the memory, seen from outside: ordinary steps pay nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Core, State
from .shell import FastWeightCore, FastWeights


@dataclass(frozen=True)
class MemoryStep:
    """One step of one layer's memory, each tensor `[B, H]`."""

    write_strength: Tensor | None
    """β of the delta rule; None where every write is added in full"""
    norm: Tensor
    """Frobenius norm of the fast weights after the step; of both matrices together where there are two"""
    change: Tensor
    """Frobenius norm of what the step changed in them, as a share of `norm`; 1 right after a reset"""


@contextmanager
def watch_memory(core: Core) -> Iterator[list[MemoryStep]]:
    """While it is open, every `step` of the core leaves here, by layer, what it did to the memory.

    The list stays empty for a core without fast weights.
    """
    layers = list(core.layers) if isinstance(core, FastWeightCore) else []
    steps: list[MemoryStep] = []
    with ExitStack() as stack:
        for index, layer in enumerate(layers):
            hook = layer.memory.register_forward_hook(_keeper(steps, index))  # type: ignore[union-attr]
            stack.callback(hook.remove)
        yield steps


def _keeper(steps: list[MemoryStep], index: int) -> Callable[..., None]:
    def keep(memory: FastWeights, given: tuple[Any, ...], result: tuple[Tensor, State]) -> None:
        x, before, reset, _ = given
        steps[index : index + 1] = [_observe(memory, x, before, reset, *result)]

    return keep


@torch.no_grad()
def _observe(
    memory: FastWeights, x: Tensor, before: State, reset: Tensor, y: Tensor, after: State
) -> MemoryStep:
    kept = (~reset[0]).to(before[0].dtype)
    squares = torch.zeros(y.shape[1], memory.num_heads, dtype=before[0].dtype, device=y.device)
    changes = squares.clone()
    for old, new, shape in zip(before, after, memory.state_shapes(), strict=True):
        if len(shape) == 3:  # fast weights, not outputs
            old = old * kept.view(-1, 1, 1, 1)
            squares += new.square().sum((-2, -1))
            changes += (new - old).square().sum((-2, -1))
    parts = memory.emit(x, before[0].dtype)
    heads = y.unflatten(-1, (memory.num_heads, -1))
    strengths = memory.strengths(parts, before, heads, reset)
    beta = strengths["write_strength"].reshape(squares.shape) if strengths else None
    return MemoryStep(beta, squares.sqrt(), (changes / squares.clamp(min=1e-30)).sqrt())
