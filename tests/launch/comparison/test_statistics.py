"""Statistics against rliable's own functions on the same scores, and against numbers worked out by hand."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np
import pytest

from deltabeast.launch.comparison.statistics import (
    as_scores,
    bootstrap,
    iqm,
    mean,
    mean_ranks,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    resample,
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


def test_an_interval_over_games_is_that_of_all_ways_to_draw_them() -> None:
    """Of five games with one seed each there are 3,125, all as likely."""
    scores = [0.1, 0.2, 0.5, 1.4, 3.0]
    means = [statistics.fmean(drawn) for drawn in itertools.product(scores, repeat=5)]
    games = as_scores([[score] for score in scores])
    low, high = np.percentile(means, [2.5, 97.5])
    assert bootstrap(mean, games, over_games=True) == pytest.approx((1.04, low, high), abs=0.05)
    assert bootstrap(mean, games) == (1.04, 1.04, 1.04)


def test_games_are_drawn_with_all_their_seeds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    games = list(rng.normal(size=(8, 3)) + rng.normal(size=(8, 1)))
    (drawn,) = resample(games, over_games=True, reps=40_000, seed=seed)
    assert [each.shape for each in drawn] == [(40_000, 3)] * 8
    # A mean of eight games varies as much as an eighth of their means, which vary with their seeds, too.
    assert np.var(mean(drawn)) == pytest.approx(np.var([game.mean() for game in games]) / 8, rel=0.05)


def test_numbers_of_seeds_change_no_draw_of_games(seed: int) -> None:
    rng = np.random.default_rng(seed)
    games = [rng.normal(size=n) for n in (1, 5, 3, 3, 5, 2)]
    means = as_scores([[game.mean()] for game in games])
    assert bootstrap(mean, games, over_games=True) == pytest.approx(bootstrap(mean, means, over_games=True))
    low, high = bootstrap(median, games, over_games=True)[1:]
    assert (low, high) == pytest.approx(bootstrap(median, means, over_games=True)[1:])


def test_all_samples_have_the_same_games(seed: int) -> None:
    """What is better in each game by a little is better in every draw, however far the games are apart."""
    x = as_scores([[100.0 * game, 100.0 * game + 1] for game in range(6)])
    y = [game - 2 for game in x]
    assert bootstrap(probability_of_improvement, x, y, over_games=True, seed=seed) == (1, 1, 1)
    few, many = resample(as_scores([[1], [2, 2, 2], [3, 3]]), as_scores([[1] * 4, [2] * 5, [3] * 4]),
                         over_games=True, reps=500, seed=seed)  # fmt: skip
    for a, b in zip(few, many, strict=True):
        assert a.shape == (500, 6) and b.shape == (500, 20)
        assert (b == a[:, :1]).all() and (a == a[:, :1]).all() and set(np.unique(a)) == {1.0, 2.0, 3.0}
    # Each of the three places is drawn by itself.
    assert (few[0] != few[1]).any()


def test_a_performance_profile_is_the_share_above(rliable: Any, seed: int) -> None:
    scores = scores_of(np.random.default_rng(seed), 3, 7)
    thresholds = np.linspace(-0.3, 3.0, 12)
    profile = performance_profile(list(scores.T), thresholds)
    assert profile.tolist() == pytest.approx(
        [rliable.library.run_score_deviation(scores, t) for t in thresholds]
    )
    # Of a threshold itself nothing is above; a game weighs the same with more seeds.
    assert performance_profile(as_scores([[1, 2], [3]]), np.array([1.0, 2.5])).tolist() == [0.75, 0.5]
    drawn = [np.stack([game, game[::-1]]) for game in scores.T]
    assert performance_profile(drawn, thresholds) == pytest.approx(np.stack([profile, profile]))


def test_ranks_by_hand() -> None:
    scores = np.array([[5.0, 1.0, 2.0], [5.0, 3.0, 4.0], [1.0, 2.0, 9.0]])
    assert mean_ranks(scores).tolist() == pytest.approx(
        [(1.5 + 3 + 3) / 3, (1.5 + 1 + 2) / 3, (3 + 2 + 1) / 3]
    )
