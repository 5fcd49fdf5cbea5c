"""The statistics of an agent's returns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_AT_ONCE = 1 << 20
"""Values drawn at once, which bounds the memory: 16 MB."""


@dataclass(frozen=True)
class Summary:
    """Statistics of returns. `mean` and `std` are of the repeats' means, as in the publication."""

    mean: float
    std: float
    """population standard deviation of the repeats' means"""
    repeat_means: list[float]
    overall_mean: float
    """over all episodes: differs from `mean` where repeats have different numbers of them"""
    interval: tuple[float, float]
    """95% interval of `mean`, by bootstrap over episodes pooled across repeats"""
    minimum: float
    maximum: float
    mean_length: float
    """agent steps"""
    count: int


@dataclass
class Returns:
    """Returns and lengths by repeat, in the order they were played."""

    returns: list[list[float]]
    lengths: list[list[int]]

    def summary(self) -> Summary | None:
        """Summarise the returns; None if nothing was finished."""
        every = [value for repeat in self.returns for value in repeat]
        if not every:
            return None
        repeats = [repeat for repeat in self.returns if repeat]
        means = [statistics.fmean(repeat) for repeat in repeats]
        uneven = len(set(map(len, repeats))) > 1
        weights = [1 / len(repeats) / len(repeat) for repeat in repeats for _ in repeat] if uneven else None
        return Summary(
            mean=statistics.fmean(means),
            std=statistics.pstdev(means),
            repeat_means=means,
            overall_mean=statistics.fmean(every),
            interval=bootstrap_interval(every, weights=weights),
            minimum=min(every),
            maximum=max(every),
            mean_length=statistics.fmean(length for repeat in self.lengths for length in repeat),
            count=len(every),
        )


@dataclass
class Evaluation:
    """Result of an evaluation. `life`: the agent's episodes; `game`: the whole games among them."""

    episodes: int
    repeats: int
    life: Returns
    game: Returns
    discarded_negative: int = 0
    """episodes left out because their return was negative"""
    discarded_wrapped: int = 0
    """episodes left out because their score wrapped and their return is unknown"""
    score_wraps: int = 0
    steps: int = 0
    """agent steps played, those of repeats that had finished left out"""
    unfinished: int = 0
    """episodes that did not end within the steps allowed"""
    notes: tuple[str, ...] = ()
    """messages of the environments to the user, each once"""

    @property
    def missing(self) -> int:
        """Episodes of those asked for that have no return: unfinished ones, and others of their repeats."""
        return self.episodes * self.repeats - sum(map(len, self.life.returns))


@dataclass(frozen=True)
class Difference:
    """How much more one player gets than another, episode by episode."""

    mean: float
    interval: tuple[float, float] | None
    """95% interval of `mean`, by bootstrap over pairs of episodes; None of a single pair"""


def paired_difference(one: Evaluation, other: Evaluation, kind: str) -> Difference | None:
    """Compare two evaluations with the same seeds: the n-th episode of a repeat with the n-th of the other's.

    `kind` is `life` or `game`. None without episodes, if their numbers differ in a repeat, and where an
    episode of either has no return: later ones would be paired with others.
    """
    if any(each.unfinished or each.discarded_negative or each.discarded_wrapped for each in (one, other)):
        return None
    ours, theirs = (getattr(each, kind).returns for each in (one, other))
    if [*map(len, ours)] != [*map(len, theirs)] or not any(ours):
        return None
    differences = [a - b for pair in zip(ours, theirs, strict=True) for a, b in zip(*pair, strict=True)]
    interval = bootstrap_interval(differences) if len(differences) > 1 else None
    return Difference(statistics.fmean(differences), interval)


def bootstrap_interval(
    values: Sequence[float],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    weights: Sequence[float] | None = None,
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the mean (Efron 1979): the means of samples drawn from the
    values with replacement lie in it with probability `confidence`.

    weights: of each place in a sample, summing to 1; all the same if not given.

    It tells how the score of this one agent would vary between evaluations, not between training seeds. The
    same values give the same interval. Raises ValueError if there are no values.
    """
    if not len(values):
        raise ValueError("an interval of no values")
    sample = np.asarray(values, np.float64)
    rng, rows = np.random.default_rng(seed), max(1, _AT_ONCE // len(sample))
    means = []
    for done in range(0, resamples, rows):
        drawn = sample[rng.integers(len(sample), size=(min(rows, resamples - done), len(sample)))]
        means.append(drawn.mean(axis=1) if weights is None else drawn @ np.asarray(weights))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return float(low), float(high)
