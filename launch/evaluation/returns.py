"""The statistics of an agent's returns."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from .bootstrap import bootstrap_interval


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
    """95% bootstrap interval of `mean`, over episodes: repeats of as many, drawn from all of them"""
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
    """agent steps played, those of rows that had finished left out"""
    unfinished: int = 0
    """episodes that did not end within the steps allowed"""
    notes: tuple[str, ...] = ()
    """what the environments had to say to the user, each once"""

    @property
    def missing(self) -> int:
        """Episodes of those asked for that have no return: unfinished ones, and others of their repeats."""
        return self.episodes * self.repeats - sum(map(len, self.life.returns))
