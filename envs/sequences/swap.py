"""Element exchange: a state that every step permutes, as in tracking S5 (Zhong et al. 2025, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..checks import check_range
from .sequences import Sequences, begins

TOKEN_BITS = 62
"""of a token, which is an int64"""


@dataclass(frozen=True)
class Swap:
    """`elements` stand in a row; each token swaps two places, `swaps` times. Asked after every token: who
    stands first?

    Sequences have `length` tokens. Who learns it begins with those and doubles them up to `longest`.

    A symbol numbers the pairs of places in order: (0, 1), (0, 2), ..., (3, 4). A token has one for each swap,
    the first swap's foremost.
    """

    length: int = 16
    elements: int = 5
    longest: int = 256
    swaps: int = 1

    def __post_init__(self) -> None:
        for name, least in (("elements", 2), ("length", 1), ("swaps", 1)):
            check_range(name, getattr(self, name), least)
        if self.swaps * math.log2(max(2, len(self.pairs))) > TOKEN_BITS:
            raise ValueError(f"swaps is {self.swaps}, too many to number; give fewer swaps or elements")
        if self.longest < self.length:
            raise ValueError(f"longest is {self.longest}, less than the length {self.length} to begin with")

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(combinations(range(self.elements), 2))

    @property
    def symbols(self) -> tuple[int, ...]:
        return (len(self.pairs),) * self.swaps

    @property
    def classes(self) -> int:
        return self.elements

    def sample(self, rng: np.random.Generator, batch: int) -> Sequences:
        pairs = rng.integers(len(self.pairs), size=(self.length, self.swaps, batch))
        swapped = np.tile(np.arange(self.elements), (len(self.pairs), 1))
        for pair, (i, j) in enumerate(self.pairs):
            swapped[pair, [i, j]] = j, i
        standing = np.tile(np.arange(self.elements), (batch, 1))
        target = np.empty((self.length, batch), np.int64)
        for t in range(self.length):
            for pair in pairs[t]:
                standing = np.take_along_axis(standing, swapped[pair], 1)
            target[t] = standing[:, 0]
        tokens = np.zeros_like(target)
        for swap in range(self.swaps):
            tokens = tokens * len(self.pairs) + pairs[:, swap]
        return Sequences(tokens, begins(self.length, batch), target)
