"""Scores, speed and shares of time, against numbers worked out by hand."""

from __future__ import annotations

import functools

import pytest

from deltabeast.agents import Episodes
from deltabeast.agents.cuda.async_metrics import AsyncMetrics
from deltabeast.agents.stopwatch import Stopwatch
from deltabeast.launch.training.progress import WINDOW, Scores, Speed, Window, time_shares


def test_scores_before_any_episode() -> None:
    assert Scores().row() == {"episodes": 0, "score_wraps": 0}


def test_scores_are_means_over_the_last_hundred() -> None:
    scores = Scores()
    scores.add(Episodes(life_returns=[1.0, 2.0], game_returns=[], game_lengths=[], score_wraps=1))
    assert scores.row() == {"life_return": 1.5, "episodes": 0, "score_wraps": 1}
    scores.add(Episodes([], [float(i) for i in range(1, 151)], list(range(1, 151)), 2))
    row = scores.row()
    assert WINDOW == 100
    assert row["game_return"] == row["game_length"] == (51 + 150) / 2
    assert row["episodes"] == 150 and row["score_wraps"] == 3 and row["life_return"] == 1.5


def test_the_best_mean_needs_ten_games_and_never_falls() -> None:
    scores = Scores()
    scores.add(Episodes([], [90.0] * 9, [1] * 9))
    assert "best_game_return" not in scores.row()
    scores.add(Episodes([], [0.0], [1]))
    assert scores.row()["best_game_return"] == 81.0
    scores.add(Episodes([], [0.0], [1]))
    row = scores.row()
    assert row["best_game_return"] == 81.0 and row["game_return"] == pytest.approx(810 / 11)
    scores.add(Episodes([], [1000.0], [1]))
    assert scores.row()["best_game_return"] == pytest.approx(1810 / 12)


def test_negative_scores_have_a_best_too() -> None:
    scores = Scores()
    scores.add(Episodes([], [-21.0] * 10, [1] * 10))
    assert scores.row()["best_game_return"] == -21.0


def test_scores_go_on_from_their_state() -> None:
    one, two = Scores(), Scores()
    one.add(Episodes([0.1, 0.2], [float(i) for i in range(120)], [5] * 120, 4))
    two.add(Episodes([7.0], [7.0], [7]))  # forgotten
    two.load_state_dict(one.state_dict())
    assert two.row() == one.row()
    for scores in (one, two):
        scores.add(Episodes([3.0], [500.0] * 90, [9] * 90))
    assert two.row() == one.row() and two.state_dict() == one.state_dict()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_window_looks_at_metrics_when_it_closes() -> None:
    """Until then they may be on their way from a GPU."""
    there = False

    def read(lag: int) -> dict[str, float]:
        assert there
        return {"entropy": lag / 2, "policy_lag": lag}

    window = Window(Stopwatch(), [Stopwatch()], in_turns=True)
    for lag in (4, 0, 5):
        window.add(AsyncMetrics(functools.partial(read, lag)))
    there = True
    row = window.close()
    assert (row["entropy"], row["policy_lag"], row["policy_lag_max"]) == (1.5, 3.0, 5)
    window.add({"entropy": 7.0, "policy_lag": 1.0})
    row = window.close()
    assert (row["entropy"], row["policy_lag"], row["policy_lag_max"]) == (7.0, 1.0, 1.0)


def test_a_metric_that_not_every_update_has_is_a_mean_over_those_that_have_it() -> None:
    window = Window(Stopwatch(), [Stopwatch()], in_turns=True)
    for metrics in ({"policy_lag": 1.0}, {"policy_lag": 2.0, "age": 5.0}, {"policy_lag": 6.0, "age": 8.0}):
        window.add(metrics)
    row = window.close()
    assert (row["policy_lag"], row["policy_lag_max"], row["age"]) == (3.0, 6.0, 6.5)


def test_reuse_is_over_all_updates_of_a_window() -> None:
    window = Window(Stopwatch(), [Stopwatch()], in_turns=True)
    again, new = ({"policy_lag": 0.0, "num_learned": 96, "num_fresh": fresh} for fresh in (0, 64))
    window.add(again)
    assert "reuse" not in window.close()
    for metrics in (again, again, new):
        window.add(metrics)
    row = window.close()
    assert row["reuse"] == 4.5 and not {"num_learned", "num_fresh"} & row.keys()


def test_speed_is_over_a_window_and_not_since_the_start() -> None:
    clock = Clock()
    speed = Speed(500, clock)
    assert speed.over(10) == 0.0
    step = 500
    for _ in range(100):  # 100 seconds at 10 steps per second
        clock.now += 1
        step += 10
        speed.mark(step)
    assert speed.over(10) == speed.over(60) == 10.0
    for _ in range(20):  # 20 seconds at 40
        clock.now += 1
        step += 40
        speed.mark(step)
    assert speed.over(10) == 40.0
    assert speed.over(60) == (20 * 40 + 40 * 10) / 60
    assert len(speed._marks) <= 62


def test_speed_with_updates_slower_than_the_window() -> None:
    clock = Clock()
    speed = Speed(0, clock)
    clock.now += 4
    speed.mark(100)
    assert speed.over(10) == speed.over(60) == 25.0, "since the start while it is young"
    clock.now += 200
    speed.mark(300)
    assert speed.over(10) == speed.over(60) == 1.0, "since the last update before the window"


def test_shares_of_actors_in_turns_add_up_to_one() -> None:
    actors = [{"emulation": 1.0, "inference": 2.0}, {"emulation": 2.0, "inference": 1.0}]
    shares = time_shares({"learning": 3.0}, actors, wall=12.0, in_turns=True)
    assert shares == {
        "share_emulation": 0.25,
        "share_inference": 0.25,
        "share_learning": 0.25,
        "share_waiting": 0.25,
    }


def test_shares_of_actors_in_threads_are_their_means() -> None:
    actors = [{"emulation": 6.0, "inference": 2.0}, {"emulation": 3.0}]
    shares = time_shares({"learning": 4.0}, actors, wall=10.0, in_turns=False)
    assert shares == pytest.approx(
        {"share_emulation": 0.45, "share_inference": 0.1, "share_learning": 0.4, "share_waiting": 0.6}
    )


def test_shares_never_wait_less_than_nothing() -> None:
    assert time_shares({"learning": 10.01}, [{}], 10.0, in_turns=True)["share_waiting"] == 0.0
