"""Sequential ListOps: the value of a nested list (Nangia, Bowman 2018; Irie et al. 2021, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from ..checks import check_range
from .sequences import NO_TARGET, Sequences, padded

OPERATORS = ("[MIN", "[MAX", "[FIRST")
TOKENS = (*map(str, range(10)), *OPERATORS, "]")
LEAF = 0.75
"""how likely an argument is a digit (the published generator's VALUE_P, 0.25, is how likely it is not)"""
MOST_ARGUMENTS = 5
DEEPEST = 20
"""a node as deep as this is a digit"""

Tree = int | tuple[int, list["Tree"]]
"""a digit, or the number of an operator and its arguments"""


@dataclass(frozen=True)
class ListOps:
    """Lists of MIN, MAX and FIRST of 2 to 5 arguments (the text: "less than five") whose deepest digit is
    inside `depth` brackets; asked at the last token.

    The published code rejects lists until one has this depth, which at most 1.5% have; these are drawn from
    the same distribution at once.
    """

    symbols: ClassVar = (len(TOKENS),)
    classes: ClassVar = 10

    depth: int = 10

    def __post_init__(self) -> None:
        check_range("depth", self.depth, 1, DEEPEST - 1)

    def sample(self, rng: np.random.Generator, batch: int) -> Sequences:
        trees = [self.tree(rng) for _ in range(batch)]
        tokens = [list(written(tree)) for tree in trees]
        targets = [
            [NO_TARGET] * (len(line) - 1) + [value(tree)] for line, tree in zip(tokens, trees, strict=True)
        ]
        return padded(tokens, targets)

    def tree(self, rng: np.random.Generator) -> Tree:
        return _draw(rng, 1, self.depth + 1, reach=True)


def written(tree: Tree) -> list[int]:
    """Return a list's tokens, as numbers of `TOKENS`."""
    if isinstance(tree, int):
        return [tree]
    operator, arguments = tree
    inside = [token for argument in arguments for token in written(argument)]
    return [10 + operator, *inside, len(TOKENS) - 1]


def value(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    operator, arguments = tree
    values = [value(argument) for argument in arguments]
    return (min(values), max(values), values[0])[operator]


@cache
def _within(depth: int, limit: int) -> float:
    """How likely a node at `depth`, 1 for the outermost list, has nothing below `limit`."""
    if depth > limit:
        return 0.0
    if depth == DEEPEST:
        return 1.0
    below = _within(depth + 1, limit)
    inside = sum(below**count for count in _COUNTS) / len(_COUNTS)
    return inside if depth == 1 else LEAF + (1 - LEAF) * inside


_COUNTS = range(2, MOST_ARGUMENTS + 1)


def _draw(rng: np.random.Generator, depth: int, limit: int, reach: bool) -> Tree:
    """Draw a node given that nothing in it is below `limit` and, if `reach`, something is as deep."""
    leaf = 0.0 if depth == 1 else 1.0 if depth == DEEPEST else LEAF
    if (depth == limit) if reach else rng.random() * _within(depth, limit) < leaf:
        return int(rng.integers(10))
    inside, above = _within(depth + 1, limit), _within(depth + 1, limit - 1) if reach else 0.0
    count = _choose(rng, [inside**count - above**count for count in _COUNTS]) + _COUNTS[0]
    arguments: list[Tree] = []
    for left in range(count, 0, -1):  # the first that reaches the limit frees those after it
        here = reach and rng.random() * (inside**left - above**left) < (inside - above) * inside ** (left - 1)
        arguments.append(_draw(rng, depth + 1, limit if here or not reach else limit - 1, here))
        reach = reach and not here
    return int(rng.integers(len(OPERATORS))), arguments


def _choose(rng: np.random.Generator, weights: Sequence[float]) -> int:
    return int(np.searchsorted(np.cumsum(weights), rng.random() * sum(weights), side="right"))
