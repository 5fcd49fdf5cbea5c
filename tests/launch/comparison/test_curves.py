"""Curves on a common grid, the clock of a log, relative improvement and labels, against values by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from comparison_runs import add_evaluation, make_run

from deltabeast.launch.comparison.curves import (
    Curve,
    band,
    curve_of,
    evaluation_curve,
    training_seconds,
    usual_way,
    whole,
)
from deltabeast.launch.comparison.grouping import compare
from deltabeast.launch.comparison.plots import looks, number, percent, spread
from deltabeast.launch.comparison.relative import published_improvement, relative_improvement, wins
from deltabeast.launch.comparison.runs import read_run
from deltabeast.launch.comparison.sections.curves import learning


def line(x: list[float], y: list[float]) -> Curve:
    return Curve(np.array(x), np.array(y))


def test_a_band_is_taken_where_all_seeds_have_points() -> None:
    # Straight lines y = x and y = 3x, logged at other steps.
    got = band([line([10, 20, 60], [10, 20, 60]), line([0, 40, 50], [0, 120, 150])])
    assert (got.x[0], got.x[-1], got.seeds) == (10, 50, 2)
    assert got.mean == pytest.approx(2 * got.x) and got.low == pytest.approx(got.x)
    assert got.high == pytest.approx(3 * got.x)


def test_a_band_that_holds_keeps_the_last_value_of_a_seed_that_ended() -> None:
    got = band([line([0, 10], [0, 10]), line([0, 30], [0, 0])], hold=True)
    assert got.x[-1] == 30 and got.mean[-1] == 5 and got.high[-1] == 10
    assert got.mean == pytest.approx(np.minimum(got.x, 10) / 2)


def test_one_seed_with_one_point_is_a_band_too() -> None:
    got = band([line([7], [3])])
    assert got.x.tolist() == [7] and got.mean.tolist() == got.low.tolist() == [3]


def test_evaluated_checkpoints_are_a_curve_of_one_kind(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    for step, score, count in ((100, 1.0, 20), (200, 2.0, 20), (200, 5.0, 150), (300, 3.0, 20)):
        add_evaluation(path, score, step=step, count=count, time=f"2026-01-0{count}")
    add_evaluation(path, 9.0, step=250, greedy=False)
    no_game = add_evaluation(path, 4.0, step=400)
    content = json.loads(no_game.read_text())
    content["results"]["trained"]["summary"]["game"] = None
    no_game.write_text(json.dumps(content))
    run, _ = read_run(path)
    assert run is not None
    curve = evaluation_curve(run, ("paper-code", True))
    assert curve.x.tolist() == [100, 200, 300, 400] and curve.y.tolist() == [1, 5, 3, 4]  # of lives
    assert evaluation_curve(run, ("paper-code", False)).y.tolist() == [9]


def test_seeds_evaluated_in_different_ways_share_no_band(tmp_path: Path) -> None:
    for seed, greedy in ((1, True), (2, True), (3, False)):
        path = make_run(tmp_path, seed=seed)
        for step in (100, 200):
            add_evaluation(path, float(seed), step=step, greedy=greedy)
    runs = [read_run(tmp_path / "gopher" / "rdn" / f"seed-{seed}")[0] for seed in (1, 2, 3)]
    comparison = compare([run for run in runs if run])
    plots = learning(comparison, looks(comparison.core_of)).plots
    (drawn,) = (plot for plot in plots if plot.name == "evaluated-gopher")
    assert "a life" in drawn.caption and "greedy" in drawn.caption
    every = (each for run in runs if run for each in run.evaluations)
    assert usual_way(every) == ("paper-code", True) and usual_way([]) is None


def test_a_seed_that_ended_early_is_no_whole_one() -> None:
    assert whole([100, 96, 94]) == [True, True, False]


def test_time_stopped_does_not_count() -> None:
    times = [1000.0, 1010.0, 1020.0, 9020.0, 9030.0]  # stopped for 8000 seconds, resumed
    rows = [{"step": 500.0 * (i + 1), "time": time, "sps": 50.0} for i, time in enumerate(times)]
    # The first row came 500 steps after the start, at 50 a second.
    assert training_seconds(rows).tolist() == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert training_seconds([]).tolist() == []
    short = [{"step": 500.0, "time": 1000.0, "sps": 50.0}, {"step": 900.0, "time": 9000.0, "sps": 40.0}]
    assert training_seconds(short).tolist() == [10.0, 20.0]  # each session wrote one row


def test_a_curve_leaves_out_rows_without_its_metric() -> None:
    rows = [{"step": 1.0, "time": 5.0}, {"step": 2.0, "time": 7.0, "game_return": 4.0}]
    curve = curve_of(rows, "game_return")
    assert curve.x.tolist() == [2.0] and curve.y.tolist() == [4.0]
    assert curve_of(rows, "game_return", seconds=True).x.tolist() == [2.0]
    assert len(curve_of(rows, "write_strength").x) == 0


def test_relative_improvement_needs_a_positive_baseline() -> None:
    assert relative_improvement(150.0, 100.0) == 50.0 and relative_improvement(0.0, 8.0) == -100.0
    assert relative_improvement(5.0, -10.0) is None and relative_improvement(5.0, 0.0) is None


def test_published_improvements_are_those_of_the_tables() -> None:
    # Tables 9 and 10: Q*Bert 987,275 against 11,513; Seaquest 4,373 against 12,643; Pong 21 against 21.
    assert published_improvement("qbert", "rdn", "lstm", 200) == pytest.approx(100 * (987275 / 11513 - 1))
    assert published_improvement("Seaquest", "rdn", "lstm", 200) == pytest.approx(-65.41, abs=0.01)
    assert published_improvement("pong", "rdn", "lstm", 200) == 0
    assert published_improvement("breakout", "rdn", "lstm", 200) is None
    assert published_improvement("qbert", "rdn", "mine", 50) is None
    assert published_improvement("popgym:popgym-RepeatPreviousEasy-v0", "rdn", "lstm", 50) is None


@pytest.mark.parametrize(
    ("core", "baseline", "millions", "expected"),
    [
        ("rdn", "lstm", 50, (12, 1, 7)),
        ("rdn", "lstm", 200, (12, 1, 7)),
        ("rdn", "linear_transformer", 50, (17, 1, 2)),
        ("rdn", "linear_transformer", 200, (16, 1, 3)),
        ("rdn", "delta_net", 50, (13, 1, 6)),
        ("rdn", "delta_net", 200, (10, 1, 9)),
        ("delta_rnn", "lstm", 50, (9, 1, 10)),
        ("feedforward", "lstm", 200, (8, 1, 11)),
    ],
)
def test_wins_counted_in_the_published_tables(
    core: str, baseline: str, millions: int, expected: tuple[int, int, int]
) -> None:
    assert wins(core, baseline, millions) == expected


def test_labels_are_moved_apart_and_keep_their_order(seed: int) -> None:
    assert spread([0.5, 0.1], 0.2) == [0.5, 0.1]
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
    positions = np.random.default_rng(seed).random(7).tolist()
    moved = spread(positions, 0.06)
    order = sorted(range(7), key=lambda i: positions[i])
    assert all(moved[b] - moved[a] >= 0.06 - 1e-9 for a, b in pairwise(order))
    assert sum(moved) == pytest.approx(sum(positions))  # as a whole they stay where they were


@pytest.mark.parametrize(
    ("value", "text"), [(8475.2, "+8,475 %"), (-12.4, "−12 %"), (0.2, "0 %"), (-0.3, "0 %"), (0.0, "0 %")]
)
def test_percentages_as_text(value: float, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-0.482, "−0.48"), (99.9, "99.90"), (12643.4, "12,643")]
)
def test_numbers_as_text(value: float, text: str) -> None:
    assert number(value) == text
