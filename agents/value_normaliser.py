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

DECAY = 3e-4
"""Share of earlier targets' weight that is lost in each update, as in Hessel et al."""
MIN_STD, MAX_STD = 1e-4, 1e6
"""Bounds of the standard deviation, as in Hessel et al."""


class ValueNormaliser(nn.Module):
    """Normalised values n, any shape -> values σ n + μ.

    The learner updates μ and σ after each step of the optimizer; before the first one they are 0 and 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.statistics = nn.Buffer(torch.zeros(3, 1, dtype=torch.float64))
        """Moments of the targets so far (normaliser.py), those of older updates with less weight."""

    def forward(self, normalised: Tensor) -> Tensor:
        mean, std = (x.to(normalised.dtype) for x in self.mean_and_std())
        return std * normalised + mean

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Return μ and σ, float64 scalars."""
        count, mean, squares = self.statistics[:, 0]
        std = (squares / count.clamp(min=1)).sqrt().clamp(MIN_STD, MAX_STD)
        return mean.clone(), torch.where(count > 0, std, 1.0)

    @torch.no_grad()
    def update_stats(
        self, several: Sequence[Tensor | NDArray[np.float64]], head: nn.Linear, finite: Tensor
    ) -> None:
        """Merge moments `[3, 1]` of an update's targets into the statistics, and change the head so that
        σ head(y) + μ stays what it was for all y (van Hasselt et al. 2016, proposition 1).

        A weighted mean is Hessel et al.'s moving average without its bias towards the initial values. Nothing
        changes unless `finite`, a bool scalar.
        """
        mean, std = self.mean_and_std()
        count, centre, squares = self.statistics
        merged = merge(torch.stack([(1 - DECAY) * count, centre, (1 - DECAY) * squares]), *several)
        self.statistics.copy_(torch.where(finite, merged, self.statistics))
        new_mean, new_std = self.mean_and_std()
        bias = (std * head.bias + mean - new_mean) / new_std
        head.weight.mul_((std / new_std).to(head.weight.dtype))
        head.bias.copy_(torch.where(finite, bias.to(head.bias.dtype), head.bias))
