"""What a run reads, as a function of the update alone: a run that goes on reads what it would have read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...envs.sequences.retrieval import Retrieval
from ...envs.sequences.sequences import NO_TARGET, Integers, Sequences, Task, begins
from ...envs.sequences.text import PARTS, Text, columns, span
from .recipe import DATA_SEED, Recipe

TRAINING, EVALUATION, ORDER, MODEL, EVALUATED_MODEL = range(5)
"""what numbers are drawn for"""


def generator(seed: int, purpose: int, index: int = 0) -> np.random.Generator:
    return np.random.default_rng((seed, purpose, index))


@dataclass(frozen=True)
class Batch:
    """Sequences as tensors `[T, B]`."""

    tokens: Tensor
    reset: Tensor
    target: Tensor


def to_batch(sequences: Sequences, device: torch.device) -> Batch:
    """Leave out the steps after the last target of all sequences."""
    asked = (sequences.target != NO_TARGET).any(1).nonzero()[0]
    steps = slice(0, int(asked[-1]) + 1)
    return Batch(*(torch.from_numpy(np.ascontiguousarray(part[steps])).to(device) for part in sequences))


class Fresh:
    """Sequences that are drawn for each update; `length` grows, where the recipe has a curriculum."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self.longest = recipe.curriculum
        """the length that is tested, if there is a curriculum"""
        self.length: int | None = getattr(recipe.task, "length", None) if self.longest else None

    @property
    def task(self) -> Task:
        task: Any = self._recipe.task
        return task if self.length is None else replace(task, length=self.length)

    def batch(self, update: int) -> Sequences:
        return self.task.sample(generator(self._seed, TRAINING, update), self._recipe.batch_size)

    def evaluation(self, update: int) -> list[Sequences]:
        """Return sequences to evaluate on, in batches."""
        rng, task = generator(self._seed, EVALUATION, update), self.task
        if isinstance(task, Retrieval):
            return [task.sample_all(rng, self._recipe.evaluation)]
        return _parts(task.sample(rng, self._recipe.evaluation), self._recipe.batch_size)


class Fixed:
    """Sequences that all runs have in common, in an order of this run's for each epoch."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        assert recipe.fixed is not None
        rng, task = np.random.default_rng(DATA_SEED), recipe.task
        assert not isinstance(task, Text)
        self._train, self._valid, self._test = (task.sample(rng, size) for size in recipe.fixed)
        self._size, self._seed = recipe.batch_size, seed

    def batch(self, update: int) -> Sequences:
        """Return the batch of an update, counted from 0; the last of an epoch may be smaller."""
        count = self._train.tokens.shape[1]
        epoch, place = divmod(update, -(-count // self._size))
        order = generator(self._seed, ORDER, epoch).permutation(count)
        return _columns(self._train, order[place * self._size : (place + 1) * self._size])

    def evaluation(self, update: int) -> list[Sequences]:
        return _parts(self._valid, self._size)

    def test(self) -> list[Sequences]:
        return _parts(self._test, self._size)


class Stream:
    """A text in contiguous columns, read from its beginning to its end and again."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        """`seed` decides nothing here: a text has one order."""
        assert isinstance(recipe.task, Text) and recipe.span is not None
        self._span = recipe.span
        self._train, self._valid, self._test = (
            columns(recipe.task.part(part), recipe.batch_size) for part in PARTS
        )

    def batch(self, update: int) -> Sequences:
        spans = -(-len(self._train[0]) // self._span)
        return span(*self._train, update % spans * self._span, self._span)

    def evaluation(self, update: int) -> list[Sequences]:
        return self._spans(*self._valid)

    def test(self) -> list[Sequences]:
        return self._spans(*self._test)

    def _spans(self, read: Integers, following: Integers) -> list[Sequences]:
        """Cut a part into spans, in order: the state is carried over in them, too."""
        return [span(read, following, start, self._span) for start in range(0, len(read), self._span)]


def _columns(sequences: Sequences, which: Integers | slice) -> Sequences:
    tokens, target = sequences.tokens[:, which], sequences.target[:, which]
    return Sequences(tokens, begins(*tokens.shape), target)


def _parts(sequences: Sequences, size: int) -> list[Sequences]:
    count = sequences.tokens.shape[1]
    return [_columns(sequences, slice(start, start + size)) for start in range(0, count, size)]
