"""How the parts of observations become vectors: bounded numbers scaled, discrete ones one-hot."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Choices = list[npt.NDArray[np.int64]]

WIDEST = 1e4
"""Bounds that are further apart say little about the values between them."""


class Numbers:
    """Reads a Box as a float32 vector `[N, D]`.

    An entry whose bounds are finite and at most 1e4 apart is scaled to at most 1 in size: 0 stays 0 where the
    bounds include it, and else the bound nearer to it becomes 0. Other entries are as they come.
    """

    def __init__(self, part: spaces.Box, unit: int | None = None) -> None:
        """unit: what all entries are divided by instead, whatever their bounds."""
        low, high = (bound.astype(np.float64).ravel() for bound in (part.low, part.high))
        with np.errstate(invalid="ignore"):
            scaled = (high - low <= WIDEST) & (unit is None)
        origin = np.where(scaled, np.clip(0, low, high), 0)
        reach = np.where(scaled, np.maximum(high - origin, origin - low), unit or 1)
        self._origin = origin if origin.any() else None
        self._reach = np.where(reach > 0, reach, 1).astype(np.float32)
        self.low, self.high = (
            np.where(scaled, (bound - origin) / self._reach, unbounded)
            for bound, unbounded in ((low, -np.inf), (high, np.inf))
        )

    def __call__(self, values: Array) -> Floats:
        flat = values.reshape(len(values), -1)
        if self._origin is not None:
            flat = flat - self._origin
        return np.divide(flat, self._reach, dtype=np.float32, casting="same_kind")


class OneHot:
    """Reads a discrete part as booleans `[N, all values of all choices]`; MultiBinary is bits already."""

    def __init__(self, part: spaces.Space[Any]) -> None:
        self._choices = _choices(part)
        size = int(np.prod(part.shape or ())) if not self._choices else sum(map(len, self._choices))
        self.low, self.high = np.zeros(size), np.ones(size)

    def __call__(self, values: Array) -> npt.NDArray[np.bool_]:
        columns = values.reshape(len(values), -1)
        if not self._choices:
            return columns.astype(bool)
        hot = [column[:, None] == choice for column, choice in zip(columns.T, self._choices, strict=True)]
        return hot[0] if len(hot) == 1 else np.concatenate(hot, axis=1)


def _choices(part: spaces.Space[Any]) -> Choices:
    """List the values of each choice that a discrete part consists of; none for the bits of MultiBinary."""
    if isinstance(part, spaces.MultiBinary):
        return []
    assert isinstance(part, spaces.Discrete | spaces.MultiDiscrete)
    counts = np.ravel(part.nvec if isinstance(part, spaces.MultiDiscrete) else part.n)
    return [
        np.arange(start, start + count) for start, count in zip(np.ravel(part.start), counts, strict=True)
    ]
