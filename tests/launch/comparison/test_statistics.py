"""Statistics against rliable's own functions on the same scores, and against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deltabeast.launch.comparison.statistics import (
    as_scores,
    bootstrap,
    iqm,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
)

THEIRS = {
    mean: "aggregate_mean",
    median: "aggregate_median",
    iqm: "aggregate_iqm",
    optimality_gap: "aggregate_optimality_gap",
}


@pytest.fixture(scope="module")
def rliable() -> Any:
    """Imported where it is needed, since that takes seconds."""
    import rliable.library
    import rliable.metrics

    return rliable


def scores_of(rng: np.random.Generator, runs: int, games: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[runs, games], skewed as normalised scores are."""
    return rng.lognormal(mean=rng.normal(size=games), sigma=0.7, size=(runs, games)) - 0.3


@pytest.mark.parametrize("ours", THEIRS, ids=lambda function: function.__name__)
@pytest.mark.parametrize(("runs", "games"), [(1, 1), (1, 7), (2, 3), (3, 20), (5, 1), (10, 26)])
def test_aggregates_are_those_of_rliable(ours: Any, runs: int, games: int, rliable: Any, seed: int) -> None:
    scores = scores_of(np.random.default_rng(seed), runs, games)
    assert ours(list(scores.T)) == pytest.approx(
        float(getattr(rliable.metrics, THEIRS[ours])(scores)), rel=1e-12
    )


@pytest.mark.parametrize(("runs_x", "runs_y", "games"), [(1, 1, 1), (3, 3, 5), (4, 7, 3), (10, 2, 20)])
def test_probability_of_improvement_is_that_of_rliable(
    runs_x: int, runs_y: int, games: int, rliable: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    # Whole numbers, so that there are ties.
    x, y = rng.integers(4, size=(runs_x, games)) * 1.0, rng.integers(4, size=(runs_y, games)) * 1.0
    ours = probability_of_improvement(list(x.T), list(y.T))
    assert ours == pytest.approx(float(rliable.metrics.probability_of_improvement(x, y)), rel=1e-12)
    assert ours + probability_of_improvement(list(y.T), list(x.T)) == pytest.approx(1.0)


@pytest.mark.parametrize("ours", [iqm, median], ids=["iqm", "median"])
def test_intervals_are_those_of_rliable(ours: Any, rliable: Any, seed: int) -> None:
    """Both draw at random: ends of the intervals may differ by what chance leaves of 2,000 draws."""
    scores = scores_of(np.random.default_rng(seed), 5, 8)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - rliable draws from it
    aggregate = getattr(rliable.metrics, THEIRS[ours])
    points, theirs = rliable.library.get_interval_estimates(
        {"x": scores}, lambda s: np.array([aggregate(s)]), reps=4000
    )
    got = bootstrap(ours, list(scores.T), reps=2000, seed=seed)
    assert got.value == pytest.approx(float(points["x"][0]))
    width = got.high - got.low
    assert got.low == pytest.approx(float(theirs["x"][0, 0]), abs=0.15 * width)
    assert got.high == pytest.approx(float(theirs["x"][1, 0]), abs=0.15 * width)


def test_intervals_of_a_probability_are_those_of_rliable(rliable: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = scores_of(rng, 6, 4), scores_of(rng, 5, 4)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    points, theirs = rliable.library.get_interval_estimates(
        {"p": [x, y]}, lambda a, b: np.array([rliable.metrics.probability_of_improvement(a, b)]), reps=300
    )
    got = bootstrap(probability_of_improvement, list(x.T), list(y.T), reps=4000, seed=seed)
    assert got.value == pytest.approx(float(points["p"][0]))
    assert (got.low, got.high) == pytest.approx((theirs["p"][0, 0], theirs["p"][1, 0]), abs=0.06)


def test_numbers_by_hand() -> None:
    games = as_scores([[1.0, 2.0, 3.0, 10.0], [5.0, 6.0, 7.0, 100.0]])
    assert iqm(games) == (3 + 5 + 6 + 7) / 4
    assert median(games) == (4 + 29.5) / 2 == mean(games)
    assert optimality_gap(games) == 0 and optimality_gap(games, 4.0) == 4 - (1 + 2 + 3 + 4 * 5) / 8
    # 1 beats nothing, 3 beats 2 and ties 3; then 1 of 1.
    assert probability_of_improvement(as_scores([[1, 3], [9]]), as_scores([[2, 3], [8]])) == (1.5 / 4 + 1) / 2


def test_games_may_have_different_numbers_of_seeds() -> None:
    games = as_scores([[1.0, 3.0], [10.0, 20.0, 60.0]])
    assert mean(games) == (2 + 30) / 2
    # A score weighs 15 in the first game and 10 in the second; of 60, 12 are cut at each end.
    assert iqm(games) == (3 * 1 + 15 * 3 + 10 * 10 + 8 * 20) / 36
    assert optimality_gap(games, 20.0) == 20 - (2 + 50 / 3) / 2
    low, high = bootstrap(mean, games)[1:]
    assert (1 + 10) / 2 <= low < 16 < high <= (3 + 60) / 2


def test_a_game_weighs_the_same_with_more_seeds(seed: int) -> None:
    """Every seed twice in some of the games: the same scores, so the same statistic, in each resample."""
    rng = np.random.default_rng(seed)
    games = list(rng.normal(size=(5, 7, 4)))  # games, resamples, seeds
    doubled = [np.repeat(game, 2, axis=-1) if i < 2 else game for i, game in enumerate(games)]
    for statistic in (iqm, optimality_gap):
        assert statistic(doubled) == pytest.approx(statistic(games), rel=1e-12)
    assert iqm([games[0], *games]) != pytest.approx(iqm(games), rel=1e-3)


def test_seeds_are_drawn_within_their_game() -> None:
    """Games that differ wildly and seeds that do not leave no interval: no game takes another's place."""
    estimate = bootstrap(mean, as_scores([[0.0, 0.0, 0.0], [1000.0, 1000.0]]))
    assert estimate == (500.0, 500.0, 500.0)


def test_an_interval_covers_what_it_should(seed: int) -> None:
    """Over many experiments of 20 seeds the true mean lies in nearly 95% of the intervals."""
    rng = np.random.default_rng(seed)
    held = 0
    for _ in range(200):
        estimate = bootstrap(mean, [rng.normal(size=20)], reps=500, seed=int(rng.integers(2**31)))
        held += estimate.low <= 0 <= estimate.high
    assert 165 <= held <= 200  # expected 185, standard deviation 4


def test_the_same_scores_have_the_same_interval(seed: int) -> None:
    scores = [np.random.default_rng(seed).normal(size=5)]
    assert bootstrap(iqm, scores) == bootstrap(iqm, scores)
