"""What a run says of itself where it is unlikely to learn: once, and nothing where it learns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from training_in_process import run
from training_process import CARTPOLE, TINY, newest, rows

from deltabeast.agents import Episodes
from deltabeast.launch.training.advice import Advice
from deltabeast.launch.training.progress import Scores

GOOD = {
    "total_loss": 10.0,
    "clipped_grad_share": 0.5,
    "grad_norm": 30.0,
    "entropy": 0.5,
    "best_game_return": 90.0,
}


def said(changes: list[dict[str, float]], first: float | None = 20.0) -> list[list[str]]:
    advice = Advice(num_actions=3, max_grad_norm=40.0)
    return [advice.of({**GOOD, **change}, first) for change in changes]


def test_a_run_that_learns_hears_nothing() -> None:
    assert said([{}] * 50) == [[]] * 50
    solved = {"entropy": 1e-4}  # a policy that has learned what there is to learn
    assert said([solved] * 50) == [[]] * 50


def test_clipped_gradients_are_told_once_after_five_rows() -> None:
    often = {"clipped_grad_share": 0.96, "grad_norm": 51234.0}
    lines = said([*[often] * 4, {}, *[often] * 9])
    assert [bool(each) for each in lines] == [False] * 9 + [True] + [False] * 4
    assert lines[9] == [
        "warning: gradients were clipped in 96% of the updates (norm 51,234, --max-grad-norm 40): try a "
        "smaller --reward-scale, --learning-rate or --batch-size"
    ]


def test_gradients_of_normalised_advantages_are_always_clipped_and_no_fault() -> None:
    assert said([{"clipped_grad_share": 1.0, "grad_norm": 3999.0}] * 9) == [[]] * 9


@pytest.mark.parametrize(("best", "first", "told"), [(21.9, 20, True), (22.1, 20, False), (-19, -20, True),
    (-17, -20, False), (0, 0, True), (0.01, 0, False), (0, None, False)])  # fmt: skip
def test_a_policy_that_stopped_exploring_without_learning(
    best: float, first: float | None, told: bool
) -> None:
    """2% of ln 3 is 0.022."""
    assert any(said([{"entropy": 0.021, "best_game_return": best}] * 5, first)[4]) == told
    assert not any(said([{"entropy": 0.023, "best_game_return": best}] * 5, first)[4])


UNREWARDED = {"entropy": 1.09, "game_return": 0.0, "best_game_return": 0.0, "episodes": 100.0}
"""1.09 is above 99% of ln 3."""


@pytest.mark.parametrize(
    "change", [{"entropy": 1.08}, {"game_return": 0.01}, {"best_game_return": 0.1}, {"episodes": 99.0}]
)
def test_games_that_all_return_the_same_under_a_random_policy(change: dict[str, float]) -> None:
    lines = said([UNREWARDED] * 9, first=0.0)
    assert [len(each) for each in lines] == [0] * 4 + [1] + [0] * 4
    assert lines[4] == [
        "warning: after 100 games returns are still 0 and the policy is still random: try "
        "--normalise-advantages, which moves it even where all returns are equal"
    ]
    rounded = {"game_return": sum([0.1] * 100) / 100, "best_game_return": sum([0.1] * 10) / 10}
    assert any(said([UNREWARDED | rounded] * 9, first=0.1)[4])
    assert said([UNREWARDED | change] * 9, first=0.0) == [[]] * 9
    normalising = Advice(num_actions=3, max_grad_norm=40.0, normalises_advantages=True)
    assert not any(normalising.of({**GOOD, **UNREWARDED}, 0.0) for _ in range(9))
    alone = Advice(num_actions=1, max_grad_norm=40.0)  # nothing to choose: neither random nor not
    assert not any(alone.of({**GOOD, **UNREWARDED}, 0.0) for _ in range(9))


def test_a_loss_that_explodes_is_told_at_once_and_once() -> None:
    lines = said([*[{}] * 5, {"total_loss": -9_999.0}, {"total_loss": 10_000.0}, {"total_loss": 1e6}])
    assert [len(each) for each in lines] == [0] * 6 + [1, 0]
    assert lines[6][0].startswith("warning: the loss rose to 10,000, from 10: try")
    assert said([*[{}] * 4, {"total_loss": 1e6}])[4] == []  # too few to say what is usual
    solved = [{"total_loss": 1e-5}] * 5
    assert [bool(said([*solved, {"total_loss": loss}])[5]) for loss in (999.0, 1000.0)] == [False, True]


def test_the_first_games_are_those_of_a_run_not_of_its_last_start() -> None:
    scores = Scores()
    scores.add(Episodes(game_returns=[1.0] * 9))
    assert scores.first is None
    scores.add(Episodes(game_returns=[11.0, 500.0]))
    assert scores.first == 2.0
    resumed, old = Scores(), Scores()
    state = scores.state_dict()
    resumed.load_state_dict(state)
    resumed.add(Episodes(game_returns=[500.0]))
    assert resumed.first == 2.0
    del state["first"]  # an earlier version's
    old.load_state_dict(state)
    assert old.first is None
    old.add(Episodes(game_returns=[500.0] * 20))
    assert old.first is None, "these are no first games"


def test_a_run_logs_the_share_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "200", "--log-seconds", "0", "--max-grad-norm", "0.001")
    assert {row["clipped_grad_share"] for row in rows(tmp_path)} == {"1"}
    assert capsys.readouterr().out.count("gradients were clipped in 100% of the updates") == 1
    assert len(newest(tmp_path)[2]["scores"]["first"]) == 10 or float(rows(tmp_path)[-1]["episodes"]) < 10


def test_a_run_without_rewards_is_told_unless_it_normalises_advantages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpaid = ("--env", "training_envs:Unpaid-v0", *TINY, "--log-seconds", "0", "--steps", "1500")
    for option, times in (("--no-normalise-advantages", 1), ("--normalise-advantages", 0)):
        run(tmp_path / option, *unpaid, option, "--entropy-cost", "1")
        assert capsys.readouterr().out.count("returns are still 0 and the policy is still random") == times
        last = rows(tmp_path / option)[-1]
        assert float(last["episodes"]) >= 100 and float(last["entropy"]) > 0.99 * math.log(2)
