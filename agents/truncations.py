"""What an actor saw last of the episodes that were cut short while they went on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Truncations(NamedTuple):
    """The truncated steps of an unroll: n of them, in any order. A step that also terminated is none."""

    step: Tensor
    """int64 `[n]`, on the CPU: t of the step that was the episode's last"""
    column: Tensor
    """int64 `[n]`, on the CPU: b of its environment"""
    observation: Tensor
    """`[n, ...]`, what followed that step, in place of which the unroll has the next episode's first"""

    def narrow(self, start: int, columns: int) -> Truncations | None:
        """Return those of `columns` columns from `start` on, counted from there; None if there are none."""
        inside = (self.column >= start) & (self.column < start + columns)
        if not inside.any():
            return None
        return Truncations(self.step[inside], self.column[inside] - start, self.observation[inside])


def join_truncations(parts: Iterable[tuple[int, Truncations | None]]) -> Truncations | None:
    """Put together those of unrolls side by side, given the column at which each begins; None if there are
    none."""
    there = [part._replace(column=part.column + start) for start, part in parts if part is not None]
    return Truncations(*map(torch.cat, zip(*there, strict=True))) if there else None
