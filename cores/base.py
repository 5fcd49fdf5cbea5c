"""The one interface of every recurrent core."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""A core's recurrent state: tensors `[B, ...]`; the empty tuple for cores without any."""
Stats = dict[str, Tensor]
"""Detached scalars to log about the memory during an unroll, e.g. `write_strength`."""


def check_not_empty(x: Tensor) -> None:
    """Raise ValueError if an unroll's input `[T, B, input_size]` has no step or no row."""
    if 0 in x.shape[:2]:
        raise ValueError(f"the core's input is {list(x.shape)}; give at least one step and one row")


class Core(nn.Module, ABC):
    """A recurrent core: `step` for actors, `unroll` for the learner, the same arithmetic in both.

    `unroll` over T steps equals T calls of `step` up to rounding. A `reset` at (t, b) means that step t
    begins a new episode: the state of row b is zeroed *before* step t reads it.

    A core needs `initial_state` and `unroll`. One with statistics to log has `unroll_with_stats` too.
    """

    equation: ClassVar[str] = ""
    """The update of the state in a step, in one line."""
    source: ClassVar[str] = ""
    """The publication of the equation."""
    nets: ClassVar[tuple[str, str, str] | None] = None
    """Slow net, update rule and fast net, by which Irie et al. 2021 name a fast weight programmer; None for a
    core that is none. `deltabeast cores` lists all three."""
    has_fast_weights: ClassVar[bool] = False
    """Whether `unroll_truncated` truncates BPTT at every step, as for all of the backbone (attention too)."""
    input_size: int
    """Width of the input vectors."""
    output_size: int
    """Width of the output vectors."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_size = output_size

    @abstractmethod
    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        """Return the state at the start of an episode: zeros, each tensor `[B, ...]`."""

    @abstractmethod
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        """x `[T, B, input_size]`, reset `[T, B]` bool -> y `[T, B, output_size]`, state after step T.

        Gradients flow through the whole span and reach the initial state. Where T or B is 0 there is
        nothing to compute: a ValueError, which the rules of `kernels` raise for cores that use one.
        """

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        """x `[B, input_size]`, reset `[B]` bool -> y `[B, output_size]`, next state."""
        y, state = self.unroll(x.unsqueeze(0), state, reset.unsqueeze(0))
        return y.squeeze(0), state

    def unroll_with_stats(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        """Like `unroll`, with statistics of the memory."""
        return *self.unroll(x, state, reset), {}

    def __init_subclass__(cls) -> None:
        """Alias a subclass's `measured_unroll`, as version 0.2 called it, to `unroll_with_stats`."""
        super().__init_subclass__()
        if "measured_unroll" in vars(cls) and "unroll_with_stats" not in vars(cls):
            warn_of_new_name(f"{cls.__name__}.measured_unroll", "unroll_with_stats")
            cls.unroll_with_stats = vars(cls)["measured_unroll"]  # type: ignore[method-assign]

    def measured_unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        """Deprecated alias of version 0.2; skips classes whose `unroll_with_stats` is their own
        `measured_unroll`, which would call this again."""
        warn_of_new_name("measured_unroll", "unroll_with_stats")
        own = (kind for kind in type(self).__mro__ if "unroll_with_stats" in vars(kind))
        kind = next(kind for kind in own if kind is Core or "measured_unroll" not in vars(kind))
        result: tuple[Tensor, State, Stats] = kind.unroll_with_stats(self, x, state, reset)  # type: ignore[attr-defined]
        return result

    def unroll_per_step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        """The name of `unroll_truncated` in version 0.2."""
        from .truncated import unroll_truncated

        warn_of_new_name("unroll_per_step", "unroll_truncated")
        return unroll_truncated(self, x, state, reset)


def warn_of_new_name(old: str, new: str) -> None:
    warnings.warn(
        f"{old} is now {new}; the old name will be removed in the next release",
        DeprecationWarning,
        stacklevel=3,
    )
