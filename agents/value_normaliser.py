"""PopArt: the value head predicts values normalised by the running mean and deviation of their targets.

van Hasselt et al. 2016, "Learning values across many orders of magnitude"; Hessel et al. 2019, "Multi-task
deep reinforcement learning with PopArt", whose IMPALA this is, of a single task.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .normaliser import merge

STEP_SIZE = 3e-4
"""Weight of the newest targets in the moving averages, as in Hessel et al."""
MIN_STD, MAX_STD = 1e-4, 1e6
"""Bounds of the standard deviation, as in Hessel et al."""


class ValueNormaliser(nn.Module):
    """Normalised values n, any shape -> values σ n + μ.

    The learner updates μ and σ after each step of the optimizer; before the first one they are 0 and 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.averages = nn.Buffer(torch.tensor([0.0, 1.0], dtype=torch.float64))
        """Moving averages of the targets and of their squares, float64 `[2]`."""

    def forward(self, normalised: Tensor) -> Tensor:
        mean, std = (x.to(normalised.dtype) for x in self.mean_and_std())
        return std * normalised + mean

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Return μ and σ, float64 scalars."""
        mean, square = self.averages
        return mean.clone(), (square - mean.square()).clamp(min=0).sqrt().clamp(MIN_STD, MAX_STD)

    @torch.no_grad()
    def update_stats(
        self, several: Sequence[Tensor | NDArray[np.float64]], head: nn.Linear, finite: Tensor
    ) -> None:
        """Move the averages towards those of an update's targets, given moments `[3, 1]` (normaliser.py),
        and change the head so that σ head(y) + μ stays what it was for all y (van Hasselt et al. 2016,
        proposition 1).

        They begin at 0 and 1 and move slowly, so that a first few targets that happen to be alike do not make
        σ tiny and later ones huge. Nothing changes unless `finite`, a bool scalar.
        """
        mean, std = self.mean_and_std()
        count, centre, squares = merge(self.averages.new_zeros(3, 1), *several)[:, 0]
        newest = torch.stack([centre, squares / count + centre.square()])
        moved = self.averages + STEP_SIZE * (newest - self.averages)
        self.averages.copy_(torch.where(finite, moved, self.averages))
        new_mean, new_std = self.mean_and_std()
        bias = (std * head.bias + mean - new_mean) / new_std
        head.weight.mul_((std / new_std).to(head.weight.dtype))
        head.bias.copy_(torch.where(finite, bias.to(head.bias.dtype), head.bias))
