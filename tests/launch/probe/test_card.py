"""The memory card: what it trains, what it leaves blank, what it draws."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import refused
from comparison_runs import make_run

from deltabeast.launch.cli import main
from deltabeast.launch.comparison import plots
from deltabeast.launch.comparison.probes import Probe
from deltabeast.launch.probe import card, card_page
from deltabeast.launch.probe.card import Trial
from deltabeast.launch.probe.snr import KERNELS


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = {
        "capacity": (Trial("retrieval", {"size": 4}, 3, 1 / 4),),
        "tracking": (Trial("swap", {"longest": 16}, 2, 1 / 5),),
    }
    monkeypatch.setitem(card.BUDGETS, "quick", trials)
    monkeypatch.setattr(card_page, "measure_cores", lambda cores: {name: (1e-3, 2e-2) for name in cores})


def table(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "card.csv").open(newline="")))


@pytest.mark.usefixtures("tiny")
def test_a_card_trains_what_is_missing_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "card"
    main(["card", "--cores", "gru", "feedforward", "--out", str(out), "--device", "cpu"])
    rows = table(out)
    assert [row["core"] for row in rows] == ["gru", "feedforward"]
    assert rows[0]["step, ms"] == "1.00" and rows[0]["state, floats"] == "256"
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in ("capacity", "tracking"))
    assert "hierarchy" not in rows[0]  # not tried: no column, and no zero
    assert (out / "card.png").read_bytes()[:4] == b"\x89PNG" and "card.png" in (out / "card.md").read_text()
    runs = sorted((out / "runs").glob("*/*/seed-1"))
    assert len(runs) == 4
    before = {run: (run / "scores.json").stat().st_mtime_ns for run in runs}
    main(["card", "--cores", "gru", "feedforward", "--out", str(out), "--device", "cpu"])
    assert before == {run: (run / "scores.json").stat().st_mtime_ns for run in runs}


@pytest.mark.usefixtures("tiny")
def test_an_ability_that_was_not_tried_is_blank(tmp_path: Path) -> None:
    for core, task, options, updates in (
        ("gru", "retrieval", ("size", "4"), "3"),
        ("gru", "swap", ("longest", "16"), "2"),
        ("lstm", "swap", ("longest", "16"), "2"),
    ):
        main(["probe", "--task", task, "--task-options", *options, "--core", core, "--updates", updates,
              "--device", "cpu", "--run-dir", str(tmp_path / "runs" / core / task)])  # fmt: skip
    main(["card", str(tmp_path / "runs"), "--out", str(tmp_path / "card")])
    by_core = {row["core"]: row for row in table(tmp_path / "card")}
    assert by_core["lstm"]["capacity"] == "" and by_core["gru"]["capacity"] != ""
    found = json.loads((tmp_path / "runs" / "gru" / "swap" / "scores.json").read_text())["test"][
        "final_accuracy"
    ]
    assert float(by_core["gru"]["tracking"]) == pytest.approx(max((found - 0.2) / 0.8, 0), abs=0.005)


def test_a_trial_is_of_a_run_that_had_its_time_or_reached_its_goal(tmp_path: Path) -> None:
    run = Probe(
        path=tmp_path, task="retrieval setting 1 size 20", core="gru", core_options={}, settings={}, seed=1,
        metric="accuracy", value=0.5, print_accuracy=None, updates=800, ended=True, in_backbone=True, rows=(),
        versions={},
    )  # fmt: skip
    trial = Trial("retrieval", {"size": "20"}, 800, 1 / 20)
    assert trial.is_of(run) and not trial.refuses(run) and not trial.refuses(replace(run, updates=900))
    assert not trial.refuses(replace(run, updates=100, value=0.9995)), "it ended early since all was right"
    assert not trial.is_of(replace(run, task="retrieval setting 1 size 60"))
    assert not trial.is_of(replace(run, task="swap setting 1 size 20"))
    assert not trial.is_of(replace(run, settings={"variant": "text"}))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"updates": 799}, "it had 799 updates, not 800"), ({"ended": False}, "it has not ended"),
        ({"in_backbone": False}, "without its backbone"),
    ]  # fmt: skip
    for other, says in refused:
        assert says in str(trial.refuses(replace(run, **other))), other


@pytest.mark.usefixtures("tiny")
def test_names_are_checked_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["card", "--cores", "gru", "no_such", "--out", str(tmp_path / "card"), "--device", "cpu"])
    assert not (tmp_path / "card").exists()


def test_what_a_card_leaves_out_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ability is blank unless all its trials are there; other settings are another row."""
    small, large = (Trial("retrieval", {"size": size}, 4, 1 / size) for size in (4, 6))
    monkeypatch.setitem(card.BUDGETS, "quick", {"capacity": (small, large)})
    monkeypatch.setattr(card_page, "measure_cores", lambda cores: {name: (1e-3, 2e-2) for name in cores})
    runs = tmp_path / "runs"
    for core, size, more in (
        ("gru", "4", ()), ("gru", "6", ()), ("gru", "4", ("--updates", "9")), ("lstm", "4", ()),
        ("lstm", "6", ("--updates", "3")), ("lstm", "5", ()),
        ("gru", "4", ("--learning-rate", "0.01")), ("gru", "6", ("--learning-rate", "0.01")),
    ):  # fmt: skip
        given = ("--task-options", "size", size, "--core", core, "--updates", "4", *more, "--device", "cpu")
        main(["probe", "--task", "retrieval", *given, "--run-dir", str(runs / "-".join([core, size, *more]))])
    capsys.readouterr()
    main(["card", str(runs), "--out", str(tmp_path / "card")])
    said = capsys.readouterr().out
    by_core = {row["core"]: row for row in table(tmp_path / "card")}
    assert list(by_core) == ["gru", "gru learning_rate 0.01", "lstm"] and by_core["lstm"]["capacity"] == ""
    shares = []
    for trial, name in ((small, "gru-4"), (large, "gru-6")):  # not that of nine updates
        scores = json.loads((runs / name / "scores.json").read_text())
        shares.append(trial.share(scores["best"]))
    assert float(by_core["gru"]["capacity"]) == pytest.approx(sum(shares) / 2, abs=0.005)
    assert "lstm: capacity is blank; there is no run of retrieval size 6 updates 4" in said
    assert "lstm-6---updates-3: left out; it had 3 updates, not 4" in said
    assert "lstm-5: left out; this card does not try retrieval setting 1 size 5" in said


@pytest.mark.usefixtures("tiny")
def test_a_card_trains_with_the_seed_given(tmp_path: Path) -> None:
    found = {}
    for seed in ("1", "2"):
        main(["card", "--cores", "gru", "--out", str(tmp_path), "--device", "cpu", "--seed", seed])
        (log,) = tmp_path.glob(f"runs/swap-*/gru/seed-{seed}/logs.csv")
        (found[seed],) = csv.DictReader(log.open(newline=""))
    assert found["1"]["loss"] != found["2"]["loss"]


@pytest.mark.usefixtures("tiny")
def test_training_runs_stand_beside_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a core's name and options, but for those that ended early; what was not trained on an environment
    is blank there.

    So is what a core costs that is not here. In the figure only shares have a colour; returns have no scale.
    """
    drawn: dict[str, Any] = {}
    draw = plots.abilities
    monkeypatch.setattr(plots, "abilities", lambda rows, *others: drawn.update(rows) or draw(rows, *others))
    for seed, value in ((1, 2.0), (2, 4.0)):  # the return of a game is three times that
        curve = [(100, 1.0, 0.0), (200, 2.0, value)]
        make_run(tmp_path / "runs", "popgym:popgym-Some-v0", "gru", seed, None, env=True, curve=curve)
    short = [(100, 1.0, 50.0)]
    make_run(tmp_path / "runs", "popgym:popgym-Some-v0", "gru", 3, None, env=True, curve=short)
    make_run(tmp_path / "runs", "popgym:popgym-Some-v0", "lstm", 1, None, env=True, checkpoint=False,
             core_options={"new": 1})  # fmt: skip
    main(["probe", "--task", "swap", "--task-options", "longest", "16", "--core", "lstm", "--updates", "2",
          "--device", "cpu", "--run-dir", str(tmp_path / "runs" / "swap")])  # fmt: skip
    main(["card", str(tmp_path / "runs"), "--out", str(tmp_path / "card")])
    said = capsys.readouterr().out
    assert "gru/seed-3: left out; it is at step 100, others of gru at 200" in said
    assert "popgym-Some-v0: trained for different steps: gru 200, lstm new 1 300,000" in said
    by_core = {row["core"]: row for row in table(tmp_path / "card")}
    assert float(by_core["gru"]["popgym-Some-v0"]) == 9.0 and by_core["gru"]["tracking"] == ""
    assert by_core["lstm"]["popgym-Some-v0"] == "" and by_core["lstm"]["tracking"] != ""
    gone = by_core["lstm new 1"]
    assert float(gone["popgym-Some-v0"]) == 9.0 and gone["step, ms"] == gone["state, floats"] == ""
    share, *rest = drawn["lstm"]
    assert isinstance(share, float) and f"{share:.2f}" == by_core["lstm"]["tracking"]
    assert not any(isinstance(cell, float) for cell in rest) and drawn["gru"][:2] == [None, "9.00"]


def test_training_runs_of_other_settings_are_another_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of most runs are not named; of protocols the rarer are left out."""
    monkeypatch.setattr(card_page, "measure_cores", lambda cores: {name: (1e-3, 2e-2) for name in cores})
    for seed, discount, value in (
        (1, 0.99, 2.0),
        (2, 0.99, 4.0),
        (3, 0.99, 6.0),
        (4, 0.5, 5.0),
        (5, 0.5, 7.0),
    ):
        make_run(tmp_path / "runs", "gopher", "gru", seed, discount=discount, curve=[(200, 2.0, value)])
    make_run(tmp_path / "runs", "gopher", "gru", 6, "ale-standard", curve=[(200, 2.0, 50.0)], discount=0.99)
    main(["card", str(tmp_path / "runs"), "--out", str(tmp_path / "card")])
    assert {row["core"]: float(row["gopher"]) for row in table(tmp_path / "card")} == {
        "gru": 12.0,
        "gru trained with discount 0.5": 18.0,
    }
    assert "seed-6: left out; it was trained under ale-standard, others paper-code" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_noise_is_that_of_the_kernel_of_a_core(tmp_path: Path) -> None:
    """Softmax attention's is exp, whose noise is known; an LSTM has no keys."""
    main(["card", "--cores", "softmax_attention", "lstm", "--out", str(tmp_path), "--device", "cpu"])
    by_core = {row["core"]: row for row in table(tmp_path)}
    expected = 32 * KERNELS["exp"].expected(32)
    assert float(by_core["softmax_attention"]["SNR, dB"]) == pytest.approx(
        -10 * math.log10(expected), abs=1.5
    )
    assert by_core["lstm"]["SNR, dB"] == ""


@pytest.mark.usefixtures("tiny")
def test_attention_of_an_earlier_version_is_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("card", "--cores", "softmax_attention", "--out", str(tmp_path), "--device", "cpu")
    main([*given])
    for file in tmp_path.glob("runs/*/*/*/config.json"):
        file.write_text(file.read_text().replace('"sequences": "whole",', ""))
    assert "whose attention saw a window of each sequence; give another --out" in refused(capsys, *given)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no core given"),
        (("runs", "--cores", "gru"), "not both"),
        (("nowhere",), "none of these is a finished run of the quick card"),
    ],
)
def test_what_cannot_be(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["card", *arguments])
    assert ended.value.code == 2 and says in capsys.readouterr().err
