"""Associative retrieval: pairs of keys and values, then a key (Schlag et al. 2021, section 6.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..checks import check_range
from .sequences import NO_TARGET, Integers, Sequences, begins

MAX_QUERIES = 200
"""asked of one sequence in an evaluation, as published"""
LARGEST = 1000
"""number of keys; 600 are the most that were published"""


@dataclass(frozen=True)
class Retrieval:
    """`size` keys and as many values. A token is `key * (size + 1) + value`; a value of `size` asks for the
    key's.

    Setting 1: all keys in some order, each with a value of its own. Setting 2: twice as many pairs, keys and
    values drawn independently, and the answer is the value that the key was shown with last. The published
    code evaluates setting 2 on sequences half as long as those it trains on, which the text does not say.
    """

    size: int = 20
    setting: Literal[1, 2] = 1
    variant: Literal["code", "text"] = "code"

    def __post_init__(self) -> None:
        check_range("size", self.size, 2, LARGEST)
        check_range("setting", self.setting, 1, 2)

    @property
    def symbols(self) -> tuple[int, ...]:
        return self.size, self.size + 1

    @property
    def classes(self) -> int:
        return self.size

    @property
    def length(self) -> int:
        """Pairs in a sequence, of training at least."""
        return self.size * self.setting

    def sample(self, rng: np.random.Generator, batch: int) -> Sequences:
        """Draw sequences, each with one query: for the key of a pair drawn among all, so that frequent keys
        are asked for more often."""
        keys, values = self._pairs(rng, self.length, batch)
        asked = keys[rng.integers(self.length, size=batch), np.arange(batch)]
        return self._with_queries(keys, values, asked[np.newaxis])

    def sample_all(self, rng: np.random.Generator, batch: int) -> Sequences:
        """Draw sequences to evaluate on: every key that is in one is asked for, up to `MAX_QUERIES`."""
        length = self.size if self.variant == "code" else self.length
        keys, values = self._pairs(rng, length, batch)
        present = [np.unique(column)[:MAX_QUERIES] for column in keys.T]
        asked = np.full((max(map(len, present)), batch), NO_TARGET)
        for column, some in enumerate(present):
            asked[: len(some), column] = some
        return self._with_queries(keys, values, asked)

    def _pairs(self, rng: np.random.Generator, length: int, batch: int) -> tuple[Integers, Integers]:
        if self.setting == 2:
            keys, values = rng.integers(self.size, size=(2, length, batch))
            return keys, values
        each = np.tile(np.arange(self.size)[:, np.newaxis], (1, batch))
        return rng.permuted(each, axis=0), rng.permuted(each, axis=0)

    def _with_queries(self, keys: Integers, values: Integers, asked: Integers) -> Sequences:
        """Append queries `[Q, B]`; where one is NO_TARGET there is none."""
        latest = np.full((self.size, keys.shape[1]), NO_TARGET)
        columns = np.arange(keys.shape[1])
        for key, value in zip(keys, values, strict=True):
            latest[key, columns] = value
        answers = np.where(asked == NO_TARGET, NO_TARGET, latest[asked, columns])
        questions = np.where(asked == NO_TARGET, 0, asked) * (self.size + 1) + self.size
        tokens = np.concatenate((keys * (self.size + 1) + values, questions))
        target = np.concatenate((np.full_like(keys, NO_TARGET), answers))
        return Sequences(tokens, begins(len(tokens), len(columns)), target)
