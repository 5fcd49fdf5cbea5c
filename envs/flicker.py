"""Screens blanked at random, so that an agent must remember what it saw."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FLICKER = 0x666C6B72
"""sets these random numbers apart from the emulators', whose seeds they share"""


class Flicker:
    """Blanks each screen with a probability, for as long as it stays in the stack (Hausknecht & Stone 2015).

    Each environment draws from its own seed.
    """

    def __init__(self, num_envs: int, stack: int, probability: float) -> None:
        self._probability = probability
        self._draws = [np.random.default_rng() for _ in range(num_envs)]
        self._blank = np.zeros((num_envs, stack), bool)

    def seed(self, seeds: Sequence[int] | npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> None:
        """Seed the environments of `rows` `[N]`, one seed for each of them."""
        for row, seed in zip(np.flatnonzero(rows), seeds, strict=True):
            self._draws[row] = np.random.default_rng((int(seed), _FLICKER))

    def show(
        self, obs: npt.NDArray[np.uint8], age: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]
    ) -> None:
        """Draw for the environments of `rows`, which made a step, and blank all in place.

        obs: [N, stack, H, W], newest screen last. age: [N], how many screens came after the episode's first,
        which stands for those before it, too.
        """
        for row in np.flatnonzero(rows):
            newest = self._draws[row].random() < self._probability
            if age[row] == 0:
                self._blank[row] = newest
            else:
                self._blank[row] = [*self._blank[row, 1:], newest]
        obs[self._blank] = 0
