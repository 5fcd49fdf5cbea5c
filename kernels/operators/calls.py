"""What the operators' calls share: which room computes, and the layout that it reads."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from ..native import compiling
from ..native import rules as native
from ..pytorch.stepwise import SPACING, wants_gradient


def launch(backend: str) -> ModuleType:
    if backend == "triton":
        from ..triton import rules as triton

        return triton
    return native


def calls_c(backend: str, *inputs: Tensor) -> bool:
    """Return whether to call C itself: an operator costs more than an actor's step."""
    return backend == "native" and not (compiling.is_watched() or wants_gradient(*inputs))


def rows(*xs: Tensor) -> tuple[Tensor, ...]:
    """Make the last dimension contiguous; slices of one projection already are, and are not copied."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in xs)


def dense(*xs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in xs)


def gradient(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def new_kept(W: Tensor, steps: int, keep: bool, backend: str) -> Tensor:
    """Allocate room for every `SPACING`-th W, for Triton's backward; C replays all of them into cache."""
    if not keep or backend != "triton":
        return W.new_empty(0)
    return W.new_empty((steps + SPACING - 1) // SPACING, *W.shape)
