"""Statistics of few seeds over many games, as Agarwal et al. (2021) recommend and rliable computes them.

Scores are one array [seeds] a game, in a list over games; the number of seeds may differ between games. Every
statistic works along the last axis and keeps those before it, so that the bootstrap's resamples [reps, seeds]
are computed in one go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Scores = Sequence[Array]


class Interval(NamedTuple):
    """A point estimate and its 95% bootstrap interval."""

    value: float
    low: float
    high: float


def mean(scores: Scores) -> Array:
    """Mean over games of the means over seeds."""
    return _game_means(scores).mean(axis=-1)


def median(scores: Scores) -> Array:
    """Median over games of the means over seeds."""
    return np.asarray(np.median(_game_means(scores), axis=-1))


def iqm(scores: Scores) -> Array:
    """Interquartile mean: of all seeds of all games together, without the lowest and the highest quarter.

    Every game weighs the same, however many seeds it has; where all have as many, this is rliable's. Weights
    are whole numbers, so that a quarter ends exactly between two scores where it should.
    """
    counts = [game.shape[-1] for game in scores]
    number = sum(counts)
    weights = np.repeat([number * math.lcm(*counts) // count for count in counts], counts)
    every = np.concatenate(scores, axis=-1)
    order = np.argsort(every, axis=-1)
    ends = np.cumsum(weights[order], axis=-1)
    whole = len(scores) * math.lcm(*counts)  # what one score weighs on average
    cut = number // 4 * whole
    inside = np.diff(np.clip(ends, cut, number * whole - cut), axis=-1, prepend=cut)
    total = (np.take_along_axis(every, order, axis=-1) * inside).sum(axis=-1)
    return np.asarray(total / (number * whole - 2 * cut))


def optimality_gap(scores: Scores, target: float = 1.0) -> Array:
    """Return how far the runs of a game fall short of the target, clipping scores at it; mean over games."""
    return target - mean([np.minimum(game, target) for game in scores])


def probability_of_improvement(x: Scores, y: Scores) -> Array:
    """Return the chance that a run of x beats one of y on the same game, ties being half; mean over games."""
    shares = [
        ((a[..., :, None] > b[..., None, :]) + 0.5 * (a[..., :, None] == b[..., None, :])).mean(axis=(-2, -1))
        for a, b in zip(x, y, strict=True)
    ]
    return np.mean(shares, axis=0)


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """Return the share of runs that score above each threshold, `[..., thresholds]`; mean over games (Agarwal
    et al. 2021, section 4.2)."""
    return np.mean([(game[..., None, :] > thresholds[:, None]).mean(axis=-1) for game in scores], axis=0)


def mean_ranks(scores: Array) -> Array:
    """Return each series' mean rank over games, of scores `[series, games]`: 1 is the highest in a game, and
    equal scores share the mean of their ranks."""
    higher = (scores[None] > scores[:, None]).sum(axis=1)
    equal = (scores[None] == scores[:, None]).sum(axis=1)
    return np.asarray((higher + (equal + 1) / 2).mean(axis=-1))


def bootstrap(
    statistic: Callable[..., Array],
    *samples: Scores,
    over_games: bool = False,
    reps: int = 10_000,
    seed: int = 1,
) -> Interval:
    """Return the statistic of samples with its 95% percentile interval, from those of `resample`."""
    drawn = resample(*samples, over_games=over_games, reps=reps, seed=seed)
    low, high = ends(statistic(*drawn))
    return Interval(float(statistic(*samples)), float(low), float(high))


def ends(drawn: Array) -> Array:
    """Return the ends of the 95% percentile interval of what was drawn along the first axis: `[2, ...]`."""
    return np.asarray(np.percentile(drawn, [2.5, 97.5], axis=0))


def resample(
    *samples: Scores, over_games: bool = False, reps: int = 10_000, seed: int = 1
) -> list[list[Array]]:
    """Draw scores anew with replacement: of each sample, an array `[reps, seeds]` a game.

    Seeds are drawn within each game (a stratified bootstrap): intervals cover what other seeds would change,
    and a game with one seed does not vary. `over_games`: games are drawn instead, with all their seeds, the
    same ones for all samples: intervals cover what other games would change, and other seeds, as a game's
    scores vary with them, too (Davison & Hinkley 1997, section 3.8). Seeds are then repeated, so that all
    games have the least common multiple of their numbers.
    """
    rng = np.random.default_rng(seed)
    if not over_games:
        return [
            [np.take(game, rng.integers(len(game), size=(reps, len(game)))) for game in sample]
            for sample in samples
        ]
    number = len(samples[0])
    drawn = rng.integers(number, size=(number, reps))
    return [list(_repeated(sample)[drawn]) for sample in samples]


def _repeated(sample: Scores) -> Array:
    """Repeat the seeds of each game, so that all have as many: `[games, seeds]`."""
    length = math.lcm(*map(len, sample))
    return np.stack([np.repeat(game, length // len(game)) for game in sample])


def as_scores(values: Sequence[Sequence[float]]) -> list[Array]:
    """Convert numbers to one array a game."""
    return [np.asarray(game, dtype=np.float64) for game in values]


def _game_means(scores: Scores) -> NDArray[Any]:
    return np.stack([game.mean(axis=-1) for game in scores], axis=-1)
