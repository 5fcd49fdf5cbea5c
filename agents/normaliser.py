"""Normalise unbounded entries of vector observations by their running mean and standard deviation.

Samples are merged as in Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for
computing sample variances".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

LIMIT = 10.0
"""Clipping bound of normalised entries, in standard deviations."""
_ROUNDING = 1e-6
"""Standard deviations below this fraction of the mean may be float32 rounding alone."""


def moments(observation: Tensor) -> Tensor:
    """Compute count, mean and sum of squared deviations of vectors `[..., D]`: float64 `[3, D]`."""
    rows = observation.flatten(0, -2).double()
    mean = rows.mean(0)
    return torch.stack([torch.full_like(mean, len(rows)), mean, (rows - mean).square().sum(0)])


def merge(merged: Tensor, *others: Tensor | NDArray[np.float64]) -> Tensor:
    """Merge moments `[3, D]` of several samples, some of which may be empty, into those of all."""
    for each in others:
        (n, mean, squares), (n_b, mean_b, squares_b) = merged, torch.as_tensor(each)
        total, delta = (n + n_b).clamp(min=1), mean_b - mean
        squares = squares + squares_b + delta.square() * n * n_b / total
        merged = torch.stack([n + n_b, mean + delta * n_b / total, squares])
    return merged


class Normaliser(nn.Module):
    """Float vectors `[N, D]` -> the same, some entries standardised and clipped to ±`LIMIT`.

    The learner merges the observations it trains on into `statistics`; inference never updates them.
    """

    def __init__(self, size: int, entries: Sequence[int]) -> None:
        """`entries`: the indices of those to be normalised."""
        super().__init__()
        if not set(entries) <= set(range(size)):
            raise ValueError(f"entries to be normalised must be among {size}, got {entries}")
        self.statistics = nn.Buffer(torch.zeros(3, size, dtype=torch.float64))
        self._mask = nn.Buffer(torch.tensor([i in set(entries) for i in range(size)]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen_transform()(x)

    def frozen_transform(self) -> Callable[[Tensor], Tensor]:
        """Return a function that normalises by the current statistics; later updates do not change it."""
        count, mean, squares = self.statistics
        deviation = (squares / count.clamp(min=1)).sqrt()
        varies = deviation > _ROUNDING * mean.abs()
        shift = torch.where(self._mask, mean, 0)
        divisor = torch.where(self._mask & varies, deviation, 1)
        limit = torch.where(self._mask, LIMIT, torch.inf)
        return lambda x: ((x - shift) / divisor).clamp(-limit, limit).float()

    @torch.no_grad()
    def update_stats(self, several: Sequence[Tensor | NDArray[np.float64]]) -> None:
        """Merge moments `[3, D]` into the statistics."""
        self.statistics.copy_(merge(self.statistics, *several))
