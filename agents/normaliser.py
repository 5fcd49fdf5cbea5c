"""Normalise vector observations, or the pixels of images, by their running mean and standard deviation.

Samples are merged as in Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for
computing sample variances".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

LIMIT = 10.0
"""Clipping bound of normalised entries of a vector, in standard deviations."""
PIXEL_LIMIT = 5.0
"""Clipping bound of normalised pixels, as in Sample Factory."""
_STRIDE = 8
"""Of images every eighth step counts: consecutive ones differ little."""
_EXACT = 256
"""Number of images whose sum of squared bytes float32 represents exactly."""
_ROUNDING = 1e-6
"""Standard deviations below this fraction of the mean may be float32 rounding alone."""


def moments(observation: Tensor) -> Tensor:
    """Compute count, mean and sum of squared deviations of vectors `[..., D]`: float64 `[3, D]`."""
    rows = observation.flatten(0, -2).double()
    mean = rows.mean(0)
    return torch.stack([torch.full_like(mean, len(rows)), mean, (rows - mean).square().sum(0)])


def pixel_moments(images: Tensor) -> Tensor:
    """Compute count, mean and sum of squared deviations of each pixel of uint8 images `[N, C, H, W]`:
    float64 `[3, C H W]`.
    """
    rows = images.flatten(1)
    sums = torch.zeros(2, rows.shape[1], dtype=torch.float64, device=rows.device)
    for some in rows.split(_EXACT):
        x = some.float()
        sums += torch.stack([x.sum(0), x.square().sum(0)])
    mean = sums[0] / len(rows)
    return torch.stack([torch.full_like(mean, len(rows)), mean, sums[1] - len(rows) * mean.square()])


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
        self._mask = nn.Buffer(torch.zeros(size, dtype=torch.bool), persistent=False)
        self._mask[list(entries)] = True

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

    def moments(self, observation: Tensor) -> Tensor:
        """Compute what `update_stats` merges, of observations `[T, B, D]`."""
        return moments(observation)


class PixelNormaliser(Normaliser):
    """uint8 images `[N, C, H, W]` -> float32; each pixel of each channel standardised and clipped to ±5.

    A pixel that has never changed is divided by 255, as all are without normalisation.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(math.prod(shape), range(math.prod(shape)))
        self.shape = shape

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return shift and factor, float32 `[C, H, W]`: x becomes (x - shift) · factor."""
        count, mean, squares = self.statistics
        deviation = (squares / count.clamp(min=1)).sqrt()
        divisor = torch.where(deviation > _ROUNDING * mean, deviation, 255)
        return mean.float().view(self.shape), (1 / divisor).float().view(self.shape)

    def frozen_transform(self) -> Callable[[Tensor], Tensor]:
        shift, factor = self.affine()
        return lambda x: ((x - shift) * factor).clamp(-PIXEL_LIMIT, PIXEL_LIMIT)

    def moments(self, observation: Tensor) -> Tensor:
        """Compute what `update_stats` merges, of images `[T, B, C, H, W]`."""
        return pixel_moments(observation[::_STRIDE].flatten(0, 1))


def make_normaliser(shape: tuple[int, ...], entries: Sequence[int]) -> Normaliser:
    """Make the normaliser of images `(C, H, W)`, whose channels are `entries`, or of a vector's entries.

    Raises ValueError for entries that the observations do not have, or for some of an image's channels only.
    """
    if len(shape) < 3:
        return Normaliser(math.prod(shape), entries)
    if [*entries] != [*range(shape[0])]:
        raise ValueError(f"all of an image's {shape[0]} channels are normalised, or none; got {entries}")
    return PixelNormaliser(shape)
