"""The bootstrap against all samples there are, and against the normal distribution it tends to."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from deltabeast.launch.evaluation.returns import Returns, bootstrap_interval


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_it_is_the_distribution_over_all_samples(confidence: float) -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    means = [sum(sample) / 5 for sample in itertools.product(values, repeat=5)]
    expected = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    assert bootstrap_interval(values, confidence, 100_000) == pytest.approx(expected, abs=0.21)


def test_it_tends_to_the_normal_interval(seed: int) -> None:
    values = np.random.default_rng(seed).normal(7.0, 3.0, 400)
    error = values.std() / 400**0.5
    assert bootstrap_interval(values) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.15 * error
    )


def test_the_mean_of_repeats_has_an_interval_of_its_own() -> None:
    summary = Returns([[0.0] * 10, [100.0]], [[1] * 10, [1]]).summary()
    assert summary is not None and summary.mean == 50 and summary.interval[0] <= 50 <= summary.interval[1]
    values, weights = [1.0, 2.0, 4.0, 8.0, 16.0], [0.6, 0.1, 0.1, 0.1, 0.1]
    means = [float(np.dot(sample, weights)) for sample in itertools.product(values, repeat=5)]
    expected = np.quantile(means, [0.025, 0.975])
    found = bootstrap_interval(values, resamples=100_000, weights=weights)
    assert found == pytest.approx(expected, abs=0.21)


def test_many_episodes_need_little_memory() -> None:
    values = list(range(20_000))
    tracemalloc.start()
    low, high = bootstrap_interval(values, resamples=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6 and low < 9_999.5 < high


def test_edges() -> None:
    assert bootstrap_interval([5.0]) == (5.0, 5.0) == bootstrap_interval([5.0] * 9)
    assert bootstrap_interval([1.0, 2.0, 3.0]) == bootstrap_interval([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([])
