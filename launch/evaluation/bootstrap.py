"""Bootstrap interval of a mean over episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def bootstrap_interval(
    values: Sequence[float], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the mean (Efron 1979): the means of samples drawn from the
    values with replacement lie in it with probability `confidence`.

    It tells how the score of this one agent would vary between evaluations, not between training seeds. The
    same values give the same interval. Raises ValueError if there are no values.
    """
    if not len(values):
        raise ValueError("an interval of no values")
    sample = np.asarray(values, np.float64)
    drawn = np.random.default_rng(seed).integers(len(sample), size=(resamples, len(sample)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(sample[drawn].mean(axis=1), (tail, 1 - tail))
    return float(low), float(high)
