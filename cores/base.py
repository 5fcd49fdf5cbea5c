"""The one interface of every recurrent core."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..kernels.native.acting import CoreSteps
from ..kernels.native.known import Kept

State = tuple[Tensor, ...]
"""A core's memory: tensors whose first dimension is the batch. Feedforward cores use the empty tuple."""
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

    A core needs `initial_state` and `unroll`. One with statistics to log has `measured_unroll` too.
    """

    equation: ClassVar[str] = ""
    """what a step does to the memory, in one line"""
    source: ClassVar[str] = ""
    """where that is from; `deltabeast cores` lists both"""
    has_fast_weights: ClassVar[bool] = False
    """whether `unroll_per_step` cuts gradients between this core's steps"""
    input_size: int
    output_size: int

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_size = output_size

    @abstractmethod
    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        """Return zeros, each tensor `[B, ...]`."""

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

    def new_kept(self, steps: int, batch_size: int) -> Kept | None:
        """Make room for what this many steps compute, if `known_unroll` can do without computing it again."""
        return None

    def keeping_step(self, x: Tensor, state: State, reset: Tensor, kept: Kept) -> tuple[Tensor, State]:
        """Do as `step`, and keep what it computed where that is possible."""
        return self.step(x, state, reset)

    def steps_in_c(self, state: State, kept: Kept) -> CoreSteps | None:
        """Return steps from `state` on, which keep what they compute, for C to make an agent's whole steps.

        None where it cannot.
        """
        return None

    def known_unroll(self, x: Tensor, state: State, reset: Tensor, kept: Kept) -> tuple[Tensor, State, Stats]:
        """Do as `measured_unroll` from what the same steps kept; compute it again if any did not."""
        return self.measured_unroll(x, state, reset)

    def measured_unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        """Do as `unroll`, and return statistics of the memory besides."""
        return *self.unroll(x, state, reset), {}

    def unroll_per_step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        """Do as `measured_unroll`, but each step takes a fast-weight memory's state as a constant.

        This is what the published RL code computes; there, too, gradients cross all steps of other cores.
        The statistics are those of the last step.
        """
        return (self._unroll_cut if self.has_fast_weights else self.measured_unroll)(x, state, reset)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over steps take minutes to compile
    def _unroll_cut(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
        check_not_empty(x)
        outputs = []
        for x_t, reset_t in zip(x.split(1), reset.split(1), strict=True):
            constants = tuple(part.detach() for part in state)
            y, state, stats = self.measured_unroll(x_t, constants, reset_t)
            outputs.append(y)
        return torch.cat(outputs), state, stats
