"""Element exchange: a state that every step permutes, as in tracking S5 (Zhong et al. 2025, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from .sequences import Sequences, begins


@dataclass(frozen=True)
class Swap:
    """`elements` stand in a row; each token swaps two places. Asked after every token: who stands first?

    Sequences have `length` tokens. Who learns it begins with those and doubles them up to `longest`.

    Tokens number the pairs of places in order: (0, 1), (0, 2), ..., (3, 4).
    """

    length: int = 16
    elements: int = 5
    longest: int = 256

    def __post_init__(self) -> None:
        if self.elements < 2 or self.length < 1:
            raise ValueError("swap needs at least two elements and one step")
        if self.longest < self.length:
            raise ValueError(f"longest is {self.longest}, less than the length {self.length} to begin with")

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(combinations(range(self.elements), 2))

    @property
    def symbols(self) -> tuple[int, ...]:
        return (len(self.pairs),)

    @property
    def classes(self) -> int:
        return self.elements

    def sample(self, rng: np.random.Generator, batch: int) -> Sequences:
        tokens = rng.integers(len(self.pairs), size=(self.length, batch))
        swapped = np.tile(np.arange(self.elements), (len(self.pairs), 1))
        for token, (i, j) in enumerate(self.pairs):
            swapped[token, [i, j]] = j, i
        standing = np.tile(np.arange(self.elements), (batch, 1))
        target = np.empty_like(tokens)
        for t, token in enumerate(tokens):
            standing = np.take_along_axis(standing, swapped[token], 1)
            target[t] = standing[:, 0]
        return Sequences(tokens, begins(self.length, batch), target)
