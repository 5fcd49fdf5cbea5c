"""Bootstrap interval of a mean over episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_AT_ONCE = 1 << 20
"""Values drawn at once, which bounds the memory: 16 MB."""


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
