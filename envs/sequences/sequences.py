"""What a task hands out: sequences of tokens with the answers that are asked for."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

NO_TARGET = -1
"""where nothing is asked"""

Integers = npt.NDArray[np.int64]


class Sequences(NamedTuple):
    """A batch of sequences, time first; shorter ones are followed by token 0 without a target."""

    tokens: Integers
    """`[T, B]`, each a number whose digits, in the mixed radix of the task's `symbols`, are what is told"""
    reset: npt.NDArray[np.bool_]
    """`[T, B]`, true where a sequence begins"""
    target: Integers
    """`[T, B]`, below the task's `classes`, or `NO_TARGET`"""


class Task(Protocol):
    """A generator of sequences: what it draws depends on `rng` alone."""

    @property
    def symbols(self) -> tuple[int, ...]:
        """Vocabulary size of each symbol in a token; most tasks have one symbol a token."""

    @property
    def classes(self) -> int: ...

    def sample(self, rng: np.random.Generator, batch: int) -> Sequences: ...


def begins(steps: int, batch: int) -> npt.NDArray[np.bool_]:
    """Return resets `[steps, batch]` of sequences that all begin at the first step."""
    reset = np.zeros((steps, batch), bool)
    reset[0] = True
    return reset


def padded(tokens: list[list[int]], targets: list[list[int]]) -> Sequences:
    """Put sequences of several lengths side by side."""
    padded_tokens = np.array(list(zip_longest(*tokens, fillvalue=0)), np.int64)
    asked = np.array(list(zip_longest(*targets, fillvalue=NO_TARGET)), np.int64)
    return Sequences(padded_tokens, begins(*padded_tokens.shape), asked)
