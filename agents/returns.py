"""Discounted returns so far, by whose standard deviation rewards are divided (Engstrom et al. 2020,
"Implementation matters in deep policy gradients", section 3; Gymnasium's NormalizeReward).

Actors track them, since episodes span unrolls; the learner merges their moments.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .normaliser import moments


class Returns:
    """The discounted sums of the rewards since each of B environments' episode began, G ← γ G + r."""

    def __init__(self, num_envs: int, discount: float) -> None:
        self.current = np.zeros(num_envs)
        """Discounted return so far, G, of each environment's episode: float64 `[B]`."""
        self._discount = discount
        self._recent: list[NDArray[np.float64]] = []

    def add(self, reward: NDArray[np.float32], done: NDArray[np.bool_]) -> None:
        """Add a step: rewards `[B]`, and whether the step was its episode's last `[B]`."""
        returns = self._discount * self.current + reward
        self._recent.append(returns)
        self.current = np.where(done, 0.0, returns)

    def pop_moments(self) -> NDArray[np.float64]:
        """Return the moments of all G since the last call, float64 `[3, 1]` (normaliser.py)."""
        recent = torch.from_numpy(np.stack(self._recent))
        self._recent.clear()
        return moments(recent.unsqueeze(-1)).numpy()


def std(moments: Tensor) -> float:
    """Return the standard deviation from moments `[3, 1]`; 1 for a constant sample."""
    count, _, squares = moments[:, 0].tolist()
    return float(squares / count) ** 0.5 if squares else 1.0
