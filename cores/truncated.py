"""Backpropagation through time (BPTT) truncated at every step, as in the published RL code."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.untraced import untraced
from .base import Core, State, Stats, check_not_empty, warn_of_new_name


@untraced  # loops over steps take minutes to compile
def unroll_truncated(core: Core, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State, Stats]:
    """Like `core.unroll_with_stats`, but each step takes the state as a constant.

    Only cores with `has_fast_weights` are truncated (base.py); gradients cross the steps of all others, as in
    the published code. The statistics are those of the last step.
    """
    if type(core).unroll_per_step is not Core.unroll_per_step:  # of a core written for version 0.2
        warn_of_new_name("unroll_per_step", "unroll_truncated")
        return core.unroll_per_step(x, state, reset)
    if not core.has_fast_weights:
        return core.unroll_with_stats(x, state, reset)
    check_not_empty(x)
    outputs = []
    for x_t, reset_t in zip(x.split(1), reset.split(1), strict=True):
        constants = tuple(part.detach() for part in state)
        y, state, stats = core.unroll_with_stats(x_t, constants, reset_t)
        outputs.append(y)
    return torch.cat(outputs), state, stats
