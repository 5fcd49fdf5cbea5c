"""The observability gap, against scores that are easy to subtract."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from comparison_runs import add_evaluation, make_run

from deltabeast.envs import human_normalized
from deltabeast.launch import cli

FLICKER = "paper-code+stack1+flicker0.5"


def reported(folder: Path) -> tuple[str, list[dict[str, str]]]:
    """Return the section, or nothing, and the numbers of its table."""
    cli.main(["compare", str(folder), "--out", str(folder / "out")])
    _, _, text = (folder / "out" / "report.md").read_text().partition("## Observability gap\n")
    table = folder / "out" / "tables" / "observability-paper-code.csv"
    return text.partition("\n## ")[0], list(csv.DictReader(table.open())) if table.exists() else []


def gaps(folder: Path) -> dict[tuple[str, ...], float]:
    _, rows = reported(folder)
    named = ("game", "series", "view", "partial_view")
    return {tuple(row[name].removeprefix("paper-code") for name in named): float(row["gap"]) for row in rows}


def normalized(life: float, game: str = "pong") -> float:
    """The helper's games last three lives."""
    found = human_normalized(game, 3 * life)
    assert found is not None
    return found


def test_a_gap_is_the_score_with_one_view_minus_that_with_less(tmp_path: Path) -> None:
    for core, whole, less in (("rdn", (6, 4), (3, 5)), ("lstm", (6, 5), (-6,))):
        for view, protocol, scores in (("four", "paper-code", whole), ("flicker", FLICKER, less)):
            for seed, score in enumerate(scores, 1):
                make_run(tmp_path / view, "pong", core, seed, protocol=protocol, scores=[score])
    text, rows = reported(tmp_path)
    assert [row["series"] for row in rows] == ["lstm", "rdn"]
    for row, whole, less in zip(rows, ([6, 5], [6, 4]), ([-6], [3, 5]), strict=True):
        full, partial = ([normalized(x) for x in some] for some in (whole, less))
        assert float(row["score"]) == pytest.approx(sum(full) / len(full))
        assert float(row["gap"]) == pytest.approx(sum(full) / len(full) - sum(partial) / len(partial))
        assert (row["view"], row["partial_view"]) == ("paper-code", FLICKER)
        assert (int(row["runs"]), int(row["partial_runs"])) == (len(whole), len(less))
    alone, both = rows
    assert alone["low"] == alone["high"] == ""  # one seed of one view says nothing of others
    # Of two seeds each the bootstrap reaches from the worst pair to the best.
    assert float(both["low"]) == pytest.approx(normalized(4) - normalized(5))
    assert float(both["high"]) == pytest.approx(normalized(6) - normalized(3))
    assert "| 4 screens | 1 screen, black with probability 0.5 |" in text and "greedy" in text


def test_views_trained_at_two_commits_have_a_gap(tmp_path: Path) -> None:
    make_run(tmp_path / "four", "pong", scores=[6])
    config = make_run(tmp_path / "flicker", "pong", protocol=FLICKER, scores=[3]) / "config.json"
    config.write_text(config.read_text().replace('"abc"', '"def"'))
    (gap,) = gaps(tmp_path).values()
    assert gap == pytest.approx(normalized(6) - normalized(3))


def test_several_games_and_several_views(tmp_path: Path) -> None:
    """Of views that each show less of something else, neither shows less."""
    for game, score in (("pong", 6), ("breakout", 30)):
        make_run(tmp_path / "four", game, "rdn", 1, scores=[score])
        make_run(tmp_path / "one", game, "rdn", 1, protocol="paper-code+stack1", scores=[score - 2])
    for number, view in enumerate(("+blink0.25", "+stack1+blink0.25", "+flicker0.9")):
        make_run(tmp_path / view, "pong", "rdn", 1, protocol=f"paper-code{view}", scores=[1 - number])
    make_run(tmp_path / "+blink0.25", "gopher", "rdn", 1, protocol="paper-code+blink0.25", scores=[1])
    of_pong = {"": 6, "+stack1": 4, "+blink0.25": 1, "+stack1+blink0.25": 0, "+flicker0.9": -1}
    pairs = [("", view) for view in of_pong if view]
    pairs += [(view, "+stack1+blink0.25") for view in ("+stack1", "+blink0.25")]
    expected = {
        ("pong", "rdn", one, other): normalized(of_pong[one]) - normalized(of_pong[other])
        for one, other in pairs
    }
    of_breakout = normalized(30, "breakout") - normalized(28, "breakout")
    expected["breakout", "rdn", "", "+stack1"] = of_breakout
    over_games = (expected["pong", "rdn", "", "+stack1"] + of_breakout) / 2
    expected["mean of breakout, pong", "rdn", "", "+stack1"] = over_games
    assert gaps(tmp_path) == pytest.approx(expected)


def test_means_are_of_the_games_that_every_series_has(tmp_path: Path) -> None:
    for view, protocol in (("four", "paper-code"), ("one", "paper-code+stack1")):
        for core, games in (("rdn", ("pong", "breakout", "gopher")), ("lstm", ("pong", "gopher"))):
            for game in games:
                make_run(tmp_path / view, game, core, 1, protocol=protocol, scores=[1])
    means = {key[:2] for key in gaps(tmp_path) if key[0].startswith("mean")}
    assert means == {("mean of gopher, pong", "lstm"), ("mean of gopher, pong", "rdn")}


def test_a_score_is_that_with_the_view_in_training(tmp_path: Path) -> None:
    """As often evaluated with all screens, and more often sampled with those."""
    for seed in (1, 2):
        make_run(tmp_path / "four", "pong", "rdn", seed, scores=[6])
        run = make_run(tmp_path / "flicker", "pong", "rdn", seed, protocol=FLICKER, scores=[1])
        add_evaluation(run, 5, "paper-code", time="2026-02-01")
        for day in range(1, 5):
            add_evaluation(run, 2, "paper-code", greedy=False, time=f"2026-04-0{day}")
    add_evaluation(run, 0, FLICKER, greedy=False, time="2026-03-01")
    (gap,) = gaps(tmp_path).values()
    assert gap == pytest.approx(normalized(6) - normalized(1))


def test_who_has_no_evaluation_is_told_how_to_make_one(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / "four", "pong", "rdn", seed, scores=[6])
    make_run(tmp_path / "flicker", "pong", "rdn", 1, protocol=FLICKER, scores=[1])
    make_run(tmp_path / "flicker", "pong", "rdn", 2, protocol=FLICKER)
    text, rows = reported(tmp_path)
    assert rows[0]["partial_runs"] == "1" and "no evaluation, so it has no score; make one with" in text


def test_without_evaluations_the_end_of_training_counts(tmp_path: Path) -> None:
    for view, protocol, end in (("four", "paper-code", 5.0), ("flicker", FLICKER, 3.0)):
        make_run(tmp_path / view, "pong", "rdn", 1, protocol=protocol, curve=[(300_000, 9.0, end)])
    text, _ = reported(tmp_path)
    assert "the last 100 training games" in text
    (gap,) = gaps(tmp_path).values()
    assert gap == pytest.approx(normalized(5) - normalized(3))


def test_what_differs_in_more_than_the_view_has_no_gap(tmp_path: Path) -> None:
    make_run(tmp_path / "four", "pong", "rdn", 1, scores=[6])
    make_run(tmp_path / "one", "pong", "rdn", 1, protocol=FLICKER, scores=[3], learning_rate=1e-3)
    make_run(tmp_path / "other", "pong", "rdn", 1, protocol="ale-standard+stack1", scores=[3])
    make_run(tmp_path / "other", "pong", "lstm", 1, protocol="paper-code+stack1", scores=[3])
    earlier = make_run(tmp_path / "early", "pong", "rdn", 1, protocol="paper-code+stack1")
    add_evaluation(earlier, 1, "paper-code+stack1", time="2026-01-01", step=100_000)
    text, rows = reported(tmp_path)
    seen = "no gap between 4 screens and 1 screen"
    assert rows == [] and "lstm on" not in text and text.count("no gap") == 3
    assert f"rdn on pong: {seen}, since they were scored after other numbers of steps." in text
    black = f"{seen}, black with probability 0.5, since no two runs differ in the view alone"
    assert f"{black}, but in learning rate (0.0006, 0.001), too." in text


def test_a_twin_without_a_score_is_named_as_what_is_missing(tmp_path: Path) -> None:
    """Though another run with the same view has one."""
    make_run(tmp_path / "four", "pong", "rdn", 1, scores=[6])
    make_run(tmp_path / "one", "pong", "rdn", 1, protocol=FLICKER)
    make_run(tmp_path / "other", "pong", "rdn", 1, protocol=FLICKER, scores=[3], learning_rate=1e-3)
    text, rows = reported(tmp_path)
    assert rows == [] and "probability 0.5, since one of them has no score of whole games." in text


def test_one_view_alone_has_no_section(tmp_path: Path) -> None:
    make_run(tmp_path / "four", "pong", "rdn", 1, scores=[6])
    make_run(tmp_path / "other", "pong", "lstm", 1, protocol="paper-code+stack1", scores=[3])
    assert reported(tmp_path) == ("", [])


def test_other_settings_of_one_view_are_series_of_their_own(tmp_path: Path) -> None:
    make_run(tmp_path / "four", "pong", "rdn", 1, scores=[6], bptt="full")
    make_run(tmp_path / "per step", "pong", "rdn", 1, scores=[2], bptt="per_step")
    make_run(tmp_path / "flicker", "pong", "rdn", 1, protocol=FLICKER, scores=[3], bptt="full")
    (gap,) = gaps(tmp_path).values()
    assert gap == pytest.approx(normalized(6) - normalized(3))
