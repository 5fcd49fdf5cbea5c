"""Runs of `deltabeast probe`: what they leave on disk, how they go on, what they refuse."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shlex
import shutil
import signal
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from command_line import refused
from training_in_process import Killed

from deltabeast.agents import checkpoint
from deltabeast.agents.checkpoint import load_newest, read_checkpoint
from deltabeast.launch import cli
from deltabeast.launch.cli import main
from deltabeast.launch.comparison.probes import Probe, labelled, read_probe, usual_options
from deltabeast.launch.config import ProbeConfig
from deltabeast.launch.errors import StoppedBySignal, UsageError
from deltabeast.launch.probe import recipe
from deltabeast.launch.probe import run as run_module
from deltabeast.launch.probe.data import Fresh, to_batch
from deltabeast.launch.probe.learner import Learner
from deltabeast.launch.probe.recipe import make_recipe
from deltabeast.launch.probe.run import ProbeRun
from deltabeast.launch.probe.snr import KERNELS, measure_noise
from deltabeast.launch.runs.directory import read_config

SMALL = ("hidden_size", "16", "num_layers", "1", "num_heads", "2", "ff_size", "16")
RETRIEVAL = ("--task", "retrieval", "--task-options", "size", "6", "--core", "delta_net", "--device", "cpu")
SWAP = ("--task", "swap", "--task-options", "length", "4", "longest", "16", "--core", "rdn",
        "--core-options", *SMALL, "--device", "cpu", "--batch-size", "8")  # fmt: skip
TEXT = ("--task", "text", "--task-options", "path", __file__, "span", "16", "--core", "delta_net",
        "--core-options", *SMALL, "--device", "cpu", "--batch-size", "4")  # fmt: skip


def probe(run_dir: Path, *arguments: str) -> None:
    main(["probe", *arguments, "--run-dir", str(run_dir)])


def probe_until_killed(run_dir: Path, *arguments: str, update: int) -> None:
    """Run `probe` until an update, counted from 0, and lose all that was not written."""
    go_on = Learner.update

    def dies(self: Learner, batch: Any, number: int) -> Any:
        if number == update:
            raise Killed
        return go_on(self, batch, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            probe(run_dir, *arguments)


def rows(run_dir: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run_dir / "logs.csv").open(newline="")))


def weights(run_dir: Path) -> tuple[int, dict[str, torch.Tensor]]:
    found = load_newest(run_dir, read_checkpoint)
    assert found is not None
    return found[1].step, found[0].weights


def test_a_run_learns_and_says_what_it_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe(tmp_path, *RETRIEVAL, "--updates", "3000")
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["metric"] == "loss" and found["best"] <= 0.001  # as published at 20 keys
    assert found["updates"] < 3000 and found["updates"] % 100 == 0
    assert "finished after" in capsys.readouterr().out
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[0] > 10 * losses[-1]


@pytest.mark.parametrize("arguments", [RETRIEVAL, SWAP, TEXT])
def test_a_run_that_was_stopped_goes_on_as_if_it_were_not(arguments: tuple[str, ...], tmp_path: Path) -> None:
    given = (*arguments, "--updates", "16", "--evaluate-every", "4")
    probe(tmp_path / "one", *given)
    probe_until_killed(tmp_path / "other", *given, update=10)
    assert weights(tmp_path / "other")[0] == 8
    probe(tmp_path / "other", *given)
    (step, one), (again, other) = weights(tmp_path / "one"), weights(tmp_path / "other")
    assert step == again == 16
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    for name in ("loss", "accuracy", "length", "best", "learning_rate"):
        assert [row[name] for row in rows(tmp_path / "one")] == [
            row[name] for row in rows(tmp_path / "other")
        ]
    probe(tmp_path / "third", *given, "--seed", "2")
    assert any(not torch.equal(tensor, one[name]) for name, tensor in weights(tmp_path / "third")[1].items())


def test_a_run_is_kept_between_evaluations_and_may_end_before_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (*RETRIEVAL, "--checkpoint-minutes", "0", "--evaluate-every", "100", "--run-dir", str(tmp_path))
    probe_until_killed(tmp_path, *given, "--updates", "40", update=25)
    assert weights(tmp_path)[0] == 25 and not rows(tmp_path)
    assert "holds a run of 25 updates; give --updates 25" in refused(
        capsys, "probe", *given, "--updates", "24"
    )
    assert read_config(tmp_path)["updates"] == 40  # what is refused changes nothing
    probe(tmp_path, *given, "--updates", "25")
    (row,) = rows(tmp_path)
    assert json.loads((tmp_path / "scores.json").read_text())["best"] == pytest.approx(float(row["loss"]))


def test_a_loss_that_is_not_finite_ends_a_run_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update = Learner.update

    def explodes(self: Learner, batch: Any, number: int) -> Any:
        loss, output = update(self, batch, number)
        return (loss * math.nan if number == 3 else loss), output

    monkeypatch.setattr(Learner, "update", explodes)
    with pytest.raises(SystemExit):
        probe(tmp_path, *RETRIEVAL, "--updates", "10")
    assert "the loss of update 4 is nan; start again with a lower --learning-rate" in capsys.readouterr().err


def test_a_run_that_is_asked_to_stop_saves_and_ends_as_by_that_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Learner.update

    def asks(self: Learner, batch: Any, number: int) -> Any:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, batch, number)

    monkeypatch.setattr(Learner, "update", asks)
    config = ProbeConfig("retrieval", {"size": 6}, core="delta_net", device="cpu", run_dir=tmp_path)
    for updates in (10, 4):  # the second has its last evaluation left
        with ExitStack() as stack:
            run = ProbeRun(replace(config, updates=updates, run_dir=tmp_path / str(updates)), stack)
            with pytest.raises(StoppedBySignal):
                run.run()
        assert weights(tmp_path / str(updates))[0] == 4
        assert not rows(tmp_path / str(updates))


@pytest.fixture(scope="module", params=[RETRIEVAL, SWAP, TEXT])
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[str, ...], Path]:
    """Arguments, and the run that they give."""
    given, folder = (
        (*request.param, "--updates", "9", "--evaluate-every", "5"),
        tmp_path_factory.mktemp("one"),
    )
    probe(folder, *given)
    return given, folder


@pytest.mark.parametrize("evaluation", range(4))
def test_an_evaluation_or_test_that_is_asked_to_stop_is_made_when_the_run_goes_on(
    uninterrupted: tuple[tuple[str, ...], Path], evaluation: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first evaluation, that of the last update, the test; and one where nothing is left to stop."""
    given, one = uninterrupted
    evaluate, run, begun = Learner.evaluate, tmp_path / "other", 0

    def asks(self: Learner, batches: Any, number: int) -> Any:
        nonlocal begun
        begun += 1
        if begun == evaluation + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, batches, number)

    tested = "retrieval" not in given
    with monkeypatch.context() as asked:
        asked.setattr(Learner, "evaluate", asks)
        asked.setattr(cli, "_end_by", ended := Mock())
        capsys.readouterr()
        probe(run, *given)
    said = capsys.readouterr().out.splitlines()
    if evaluation >= 2 + tested:
        assert not ended.called and said[-1].startswith("finished after 9 updates")
    else:
        ended.assert_called_once_with(signal.SIGTERM)
        at = 5 if evaluation == 0 else 9
        assert said[-1] == f"stopped at update {at}, saved in {run}; run the same command to go on"
        assert weights(run)[0] == at and not (run / "scores.json").exists()
        assert len(rows(run)) == evaluation
    probe(run, *given)
    (step, expected), (again, found) = weights(one), weights(run)
    assert step == again == 9
    assert all(torch.equal(each, expected[name]) for name, each in found.items())
    for column in ("step", "loss", "accuracy", "train_loss", "length", "best", "tokens"):
        assert [row[column] for row in rows(one)] == [row[column] for row in rows(run)]
    assert (run / "scores.json").read_text() == (one / "scores.json").read_text()


def test_what_takes_long_beside_training_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data that is drawn or read, the first evaluation, the test."""
    monkeypatch.setattr(
        run_module, "announced", lambda what, say: nullcontext(say(what))
    )  # as if all took long
    code = ("--task", "code", "--task-options", "variables", "1", "statements", "2", "--core", "gru",
            "--core-options", "hidden_size", "4", "--batch-size", "500", "--device", "cpu")  # fmt: skip
    for name, given, drawn, evaluated in (
        ("code", code, "drawing 11,997 sequences of code", 999 * 7),
        ("text", TEXT, f"reading {__file__}", None),
    ):
        probe(tmp_path / name, *given, "--updates", "2", "--evaluate-every", "1")
        out = capsys.readouterr().out.splitlines()
        said = [re.sub(r"[\d,]+ tokens", "N tokens", line) for line in out]
        assert drawn in said
        told = [line for line in said if "N tokens" in line]
        assert told == ["evaluating with N tokens, at update 1", "testing with N tokens, at update 2"]
        assert evaluated is None or any(f"with {evaluated:,} tokens" in line for line in out)


@pytest.mark.parametrize(("asked_at", "stops"), [(1, True), (124, True), (125, False)])
def test_a_signal_within_an_evaluation_stops_it_before_its_next_batch(
    asked_at: int, stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last of its 125 batches nothing is left to stop."""
    read: list[Any] = []

    def asks(part: Any, device: torch.device) -> Any:
        read.append(part)
        if len(read) == 1 + asked_at:  # after that of the only update
            os.kill(os.getpid(), signal.SIGTERM)
        return to_batch(part, device)

    monkeypatch.setattr(run_module, "to_batch", asks)
    config = ProbeConfig(
        "dag", {"nodes": 4}, core="gru", device="cpu", batch_size=8, updates=1, run_dir=tmp_path
    )
    with ExitStack() as stack, pytest.raises(StoppedBySignal) if stops else nullcontext():
        ProbeRun(config, stack).run()
    assert len(read) == 1 + asked_at
    assert (tmp_path / "scores.json").exists() != stops


def test_the_training_loss_is_the_mean_since_the_last_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Learner.update
    monkeypatch.setattr(
        Learner, "update", lambda self, batch, number: (torch.tensor(number), update(self, batch, number)[1])
    )
    probe(tmp_path, *RETRIEVAL, "--updates", "4", "--evaluate-every", "2")
    assert [float(row["train_loss"]) for row in rows(tmp_path)] == [0.5, 2.5]


def test_a_log_has_the_columns_that_mean_something(tmp_path: Path) -> None:
    code = ("--task", "code", "--task-options", "variables", "1", "statements", "4", "--core", "gru",
            "--core-options", "hidden_size", "8", "--device", "cpu", "--batch-size", "2000")  # fmt: skip
    for name, arguments, special in (
        ("swap", SWAP, {"final_accuracy"}), ("text", TEXT, {"perplexity"}),
        ("code", code, {"print_accuracy", "final_accuracy"}),
    ):  # fmt: skip
        probe(tmp_path / name, *arguments, "--updates", "2", "--evaluate-every", "2")
        filled = {column for column, value in rows(tmp_path / name)[-1].items() if value}
        assert filled & {"perplexity", "print_accuracy", "final_accuracy"} == special
        found = json.loads((tmp_path / name / "scores.json").read_text())["test"]
        assert found.keys() & {"perplexity", "print_accuracy", "final_accuracy"} == special


def test_another_run_is_not_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe(tmp_path, *RETRIEVAL, "--updates", "10")
    for other, says in (
        (("--seed", "2"), "seed 1, not 2"),
        (("--max-grad-norm", "1"), "max_grad_norm None, not 1.0"),
    ):
        with pytest.raises(SystemExit):
            probe(tmp_path, *RETRIEVAL, "--updates", "10", *other)
        assert f"holds a run with {says}" in capsys.readouterr().err


def test_a_hybrid_that_was_begun_as_an_lstm_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its learning rate would be another from here on."""
    given = ("--task", "code", "--task-options", "variables", "1", "statements", "4", "--core", "hybrid",
             "--core-options", "hidden_size", "8", "num_heads", "2", "ff_size", "8", "--device", "cpu",
             "--batch-size", "2000", "--updates", "2")  # fmt: skip
    with monkeypatch.context() as earlier:
        earlier.setattr(recipe, "FastWeightCore", Learner)  # which no core is
        probe(tmp_path, *given)
    assert "an earlier version, which trained hybrid as an LSTM" in refused(
        capsys, "probe", *given, "--run-dir", str(tmp_path)
    )


DAG = ("--task", "dag", "--task-options", "nodes", "4", "--device", "cpu", "--batch-size", "50",
       "--updates", "2", "--core-options", "hidden_size", "8", "num_heads", "2", "ff_size", "8")  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "is_another"),
    [
        (("--core", "softmax_attention"), True),
        (("--core", "hybrid", "layers", "delta_net,deltaformer"), True),
        (("--core", "hybrid", "layers", "delta_net"), False),
        (("--core", "softmax_attention", "window", "3"), False),
        (("--core", "gtrxl"), False),
        (("--core", "delta_net"), False),
    ],
)
def test_attention_that_saw_a_window_of_each_sequence_is_another_run(
    arguments: tuple[str, ...], is_another: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It is not gone on with, nor compared with those that see all."""
    given = (*DAG, *arguments[2:], *arguments[:2])
    with monkeypatch.context() as earlier:
        earlier.setattr(
            checkpoint, "asdict", lambda spec: {k: v for k, v in asdict(spec).items() if k != "is_cut"}
        )
        probe(tmp_path, *given)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"sequences": "whole",', ""))
    assert isinstance(read_probe(tmp_path), str) == is_another
    if is_another:
        assert "whose attention saw a window of each sequence; give another --run-dir" in refused(
            capsys, "probe", *given, "--run-dir", str(tmp_path)
        )
        assert "whose attention saw a window" in str(read_probe(tmp_path))
        return
    probe(tmp_path, *given)
    assert json.loads(config.read_text())["sequences"] == "whole"


def test_more_updates_go_on_unless_the_learning_rate_falls_over_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run given some more is the one that had them from the beginning; one whose rate fell is not."""
    given = (*RETRIEVAL, "--evaluate-every", "5")
    probe(tmp_path / "more", *given, "--updates", "10")
    probe(tmp_path / "more", *given, "--updates", "20")
    probe(tmp_path / "once", *given, "--updates", "20")
    (step, more), (_, once) = weights(tmp_path / "more"), weights(tmp_path / "once")
    assert step == 20 and all(torch.equal(tensor, once[name]) for name, tensor in more.items())
    probe(tmp_path / "swap", *SWAP, "--updates", "5")
    for updates in ("4", "6"):
        says = refused(capsys, "probe", *SWAP, "--updates", updates, "--run-dir", str(tmp_path / "swap"))
        assert f"updates 5, not {updates}" in says


def test_one_run_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What says no more than a default is no other run; a variant of the task is."""
    monkeypatch.chdir(tmp_path)
    given = (
        "probe",
        "--task",
        "retrieval",
        "--core",
        "linear_transformer",
        "--updates",
        "2",
        "--device",
        "cpu",
    )
    for same in (
        ("--task-options", "size", "6"),
        ("--task-options", "size", "6", "setting", "1", "--shell", "off"),
        ("--task-options", "setting", "1", "size", "6", "--shell", "auto"),
    ):
        main([*given, *same])
    assert [str(path.parent) for path in Path().rglob("scores.json")] == [
        "runs/probe/retrieval-size-6/linear_transformer/seed-1"
    ]
    main([*given, "--task-options", "size", "6", "--variant", "text"])
    main(["probe", "--task", "retrieval", "--core", "gru", "--updates", "2", "--shell", "on"])
    main(["probe", "--task", "retrieval", "--core", "gru", "--updates", "2"])
    assert len([*Path().rglob("scores.json")]) == 3


def test_what_never_trained_is_begun_anew(tmp_path: Path) -> None:
    probe_until_killed(tmp_path, *RETRIEVAL, "--updates", "4", update=0)
    assert read_config(tmp_path)["seed"] == 1
    probe(tmp_path, *RETRIEVAL, "--updates", "4", "--seed", "2")
    assert read_config(tmp_path)["seed"] == 2 and weights(tmp_path)[0] == 4


def test_a_copy_of_a_run_is_no_other_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (*RETRIEVAL, "--updates", "4")
    for name, seed in (("a", "1"), ("b", "2"), ("c", "1")):
        probe(tmp_path / "runs" / name, *given, "--seed", seed)
    probe(tmp_path / "runs" / "d", *given[:-1], "5")
    capsys.readouterr()
    main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert f"{tmp_path}/runs/c: left out; it is {tmp_path}/runs/a again" in capsys.readouterr().out
    table = csv.DictReader((tmp_path / "out" / "tables" / "probes.csv").open(newline=""))
    assert {row["model"]: row["seeds"] for row in table} == {
        "delta_net updates 4": "2", "delta_net updates 5": "1"
    }  # fmt: skip


def test_info_says_how_far_a_probe_is_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (*RETRIEVAL, "--seed", "3", "--evaluate-every", "2")
    probe_until_killed(tmp_path, *given, "--updates", "8", update=5)
    capsys.readouterr()
    main(["info", str(tmp_path)])
    said = dict(re.findall(r"^(\w[\w ]*?)  +(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert said["trains"] == "retrieval size 6 · delta_net · seed 3"
    assert said["inputs"] == "tokens of 6 x 7 kinds; 6 answers to choose from" and "observations" not in said
    assert said["progress"].startswith("update 4 of 8, ") and said["remaining"].startswith("4 updates, ")
    assert float(said["loss"]) == pytest.approx(float(rows(tmp_path)[-1]["loss"]), rel=1e-3)
    words = shlex.split(said["to go on"])
    assert words[:2] == ["deltabeast", "probe"]
    main(words[1:])
    assert weights(tmp_path)[0] == 8 and read_config(tmp_path)["seed"] == 3
    main(["info", str(tmp_path)])
    out = capsys.readouterr().out
    assert "after 8 updates" in out and "to go on" not in out and "deltabeast compare" in out


def test_info_of_a_run_of_one_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe(tmp_path, *RETRIEVAL, "--updates", "1")
    assert "finished after 1 update: loss" in capsys.readouterr().out
    main(["info", str(tmp_path)])
    out = capsys.readouterr().out
    assert out.count("after 1 update\n") == 1
    (tmp_path / "scores.json").unlink()
    (spec,) = tmp_path.glob("checkpoints/*/agent.json")
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"symbols": [6, "x"]}))
    main(["info", str(tmp_path)])
    out = capsys.readouterr().out
    assert re.search(r"^remaining +its last evaluation or test$", out, re.MULTILINE) and "inputs" not in out
    assert f"deltabeast probe --config {tmp_path}" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--task", "retrieval", "--task-options", "sise", "6"), "task 'retrieval' has no option 'sise'"),
        (("--task", "retrieval", "--task-options", "setting", "3"), "setting is '3'; it takes one of 1, 2"),
        (("--task", "listops", "--task-options", "depth", "40"), "depth is 40; give 1 to 19"),
        (("--task", "swap", "--core", "no_such"), "no_such"),
        (("--task", "swap", "--variant", "text"), "--variant text: swap is the same"),
        (("--task", "code", "--shell", "off"), "--shell off: cores have no form without it in code"),
        (
            ("--task", "swap", "--core", "deltaformer", "--core-options", "num_layers", "2"),
            "deltaformer alone, as swap tries it, has no option num_layers",
        ),
        (
            ("--task", "swap", "--core", "softmax_attention", "--core-options", "hidden_size", "13"),
            "try hidden_size 12",
        ),
        (
            ("--task", "swap", "--core", "softmax_attention", "--core-options", "num_heads", "0"),
            "num_heads is 0",
        ),
        (("--task", "swap", "--task-options", "longest", "2"), "longest is 2"),
        (
            ("--task", "retrieval", "--core", "delta_net", "--core-options", "feature_map", "cosine"),
            "feature_map",
        ),
        (
            (
                "--task",
                "retrieval",
                "--core",
                "fast_weight_memory",
                "--core-options",
                "feature_map",
                "cosine",
            ),
            "rule 'fast_weight_memory': feature_map is 'cosine'; it takes one of elu,",
        ),
        (
            ("--task", "retrieval", "--core", "fast_weight_memory", "--core-options", "num_heads", "2"),
            "fast_weight_memory alone, as retrieval tries it, has no option num_heads",
        ),
        (
            ("--task", "retrieval", "--core", "fast_weight_memory", "--core-options", "num_heads", "2"),
            "it has feature_map, dpfp_nu, favor_features\n",
        ),
        (("--task", "retrieval", "--core", "fast_weight_memory", "--dropout", "0.1"), "has none; omit it\n"),
        (
            ("--task", "swap", "--core", "fast_weight_memory"),
            "is a rule alone, tried in retrieval only; give --task retrieval, or another --core\n",
        ),
        (("--task", "retrieval", "--core", "fast_weight_memry"), "did you mean fast_weight_memory?\n"),
        (("--task", "retrieval", "--core", "fast-weight-memory"), "did you mean fast_weight_memory?\n"),
        (("--task", "retrieval", "--core", "delta_nett"), "did you mean delta_net or "),
        (
            ("--task", "retrieval", "--core", "fast_weight_memory", "--shell", "on"),
            "--shell on: fast_weight_memory is a rule alone, which has no backbone; omit it\n",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    arguments: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, "probe", *arguments, "--run-dir", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_sequences_grow_once_a_batch_is_right() -> None:
    recipe = make_recipe(ProbeConfig("swap", task_options={"length": 4, "longest": 6}))
    run = ProbeRun.__new__(ProbeRun)
    run.recipe, run.data = recipe, Fresh(recipe, 1)
    target = torch.randint(5, (4, 1000))
    nearly = torch.nn.functional.one_hot(target, 5).float()
    nearly[0, :5] = nearly[0, :5].roll(1, -1)
    run._grow(nearly, target)
    assert run.data.length == 4
    right = torch.nn.functional.one_hot(target, 5).float()
    run._grow(right, target)
    assert run.data.length == 6 and run.data.batch(0).tokens.shape[0] == 6  # never beyond the longest
    run._grow(right, target)
    assert run.data.length == 6


def test_a_core_in_its_shell_answers_retrieval_through_a_head(tmp_path: Path) -> None:
    """It is judged by another metric than memories alone, and not beside their published loss."""
    given = ("--task", "retrieval", "--task-options", "size", "4", "--core", "delta_net", "--updates", "5")
    for shell in ("on", "off"):
        probe(tmp_path / "runs" / shell, *given, "--shell", shell)
    main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    table = list(csv.DictReader((tmp_path / "out" / "tables" / "probes.csv").open(newline="")))
    assert [row["metric"] for row in table] == ["accuracy", "loss"]
    assert 0 <= float(table[0]["mean"]) <= 1


def test_published_numbers_stand_beside_ours(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        given = (
            "--task-options",
            "setting",
            "2",
            "--core",
            "delta_net",
            "--core-options",
            "feature_map",
            "dpfp",
        )
        probe(tmp_path / "runs" / seed, "--task", "retrieval", *given, "--seed", seed, "--updates", "10")
    main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    (row,) = csv.DictReader((tmp_path / "out" / "tables" / "probes.csv").open(newline=""))
    assert row["published"] == ""  # ours have a budget of their own
    blank = "Where published is blank, the papers do not have that core on that task with these options"
    assert (tmp_path / "out" / "report.md").read_text().count(blank) == 1
    for file in (tmp_path / "runs").glob("*/config.json"):
        file.write_text(file.read_text().replace('"updates": 10,', '"updates": null,'))
    main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    (row,) = csv.DictReader((tmp_path / "out" / "tables" / "probes.csv").open(newline=""))
    assert row["task"] == "retrieval setting 2 size 20" and row["seeds"] == "2"
    assert float(row["published"]) == pytest.approx(0.00076642)
    assert blank not in (tmp_path / "out" / "report.md").read_text()
    values = [
        json.loads((tmp_path / "runs" / seed / "scores.json").read_text())["best"] for seed in ("1", "2")
    ]
    assert float(row["mean"]) == pytest.approx(sum(values) / 2)


def test_published_tables_stand_beside_ours(tmp_path: Path) -> None:
    """Of programs also the print accuracy, which is published of the best validation."""
    narrow = {"hidden_size": 128, "num_heads": 8, "ff_size": 256, "num_layers": 8}
    code = ("--task", "code", "--task-options", "variables", "1", "statements", "2", "--core", "lstm",
            "--core-options", "hidden_size", "8", "--batch-size", "5000", "--updates", "3",
            "--evaluate-every", "1", "--device", "cpu")  # fmt: skip
    probe(tmp_path / "code", *code)
    probe(tmp_path / "retrieval", *RETRIEVAL, "--updates", "2", "--evaluate-every", "1")
    table = rows(tmp_path / "code")
    for row, accuracy, best, printed in zip(
        table, (0.2, 0.6, 0.4), (0.2, 0.6, 0.6), (0.5, 0.7, 0.9), strict=True
    ):
        row.update(sequence_accuracy=str(accuracy), best=str(best), print_accuracy=str(printed))
    with (tmp_path / "code" / "logs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    usual = {"updates": None, "batch_size": None, "evaluate_every": None}
    memory = "fast_weight_memory"
    asked = [
        ("code", {"variables": 5}, "transformer", {}, 0.354, 0.755),
        ("code", {"variables": 3}, "rdn", {}, 0.926, 0.996),
        ("code", {"variables": 5}, "delta_rnn", narrow, 0.941, None),
        ("retrieval", {"setting": 2, "size": 40}, memory, {"feature_map": "tanh"}, 4.82506, None),
        ("retrieval", {"setting": 2}, memory, {"feature_map": "dpfp"}, 0.0403583, None),
    ]
    for number, (task, options, core, core_options, *_) in enumerate(asked):
        run = tmp_path / "runs" / str(number)
        shutil.copytree(tmp_path / task, run)
        about = json.loads((run / "config.json").read_text())
        about["config"] |= {"task_options": options, "core": core, "core_options": core_options, **usual}
        (run / "config.json").write_text(json.dumps(about))
    main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    found = list(csv.DictReader((tmp_path / "out" / "tables" / "probes.csv").open(newline="")))
    published = {(row["task"], row["metric"], row["model"]): row["published"] for row in found}
    for task, options, core, core_options, value, printed in asked:
        label = labelled(task, usual_options(task) | options)
        model, metric = labelled(core, core_options), "loss" if task == "retrieval" else "sequence_accuracy"
        assert float(published[label, metric, model]) == value
        if task == "code":
            assert published[label, "print_accuracy", model] == ("" if printed is None else str(printed))
    assert {row["mean"] for row in found if row["metric"] == "print_accuracy"} == {"0.7"}
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Table 2; Irie et al. 2021, Table 5; Irie et al. 2021, Table 6; Schlag" in text


@pytest.mark.parametrize("kernel", KERNELS)
def test_noise_is_as_derived(kernel: str, seed: int) -> None:
    noise = measure_noise(kernel, 16, 200, 600, np.random.default_rng(seed))
    assert abs(noise.measured - noise.expected) < max(5 * noise.error, 0.03 * noise.expected)
    ratio = noise.expected / noise.printed
    assert math.isclose(ratio, math.e**2 if kernel == "solu" else 1.0)


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="choose auto, cpu or cuda"):
        ProbeRun(ProbeConfig("swap", device="tpu", run_dir=tmp_path), stack)


def test_what_a_sequence_grows_to_is_what_is_compared(tmp_path: Path) -> None:
    """A run that stays at short sequences is tested with long ones; accuracies of short ones are no best."""
    run = tmp_path / "run"
    probe(run, "--task", "swap", "--task-options", "longest", "64", "--core", "feedforward", "--updates", "4",
          "--evaluate-every", "2")  # fmt: skip
    assert [(row["length"], row["best"]) for row in rows(run)] == [("16", ""), ("16", "")]
    scores = json.loads((run / "scores.json").read_text())
    assert scores["best"] is None and scores["length"] == 16
    found = read_probe(run)
    assert isinstance(found, Probe) and found.value == scores["test"]["final_accuracy"] < 0.4


def test_growth(tmp_path: Path) -> None:
    with ExitStack() as stack:
        options = {"length": 1, "longest": 3}
        run = ProbeRun(ProbeConfig("swap", options, core="gru", device="cpu", run_dir=tmp_path), stack)
        assert isinstance(run.data, Fresh)
        target = torch.randint(5, (1, 2000))
        right = torch.nn.functional.one_hot(target, 5)
        wrong = right.clone()
        wrong[0, :3] = wrong[0, :3].roll(1, -1)
        lengths = []
        for output in (wrong, right, wrong, right, right):
            run._grow(output, target)
            lengths.append(run.data.length)
    assert lengths == [1, 2, 2, 3, 3]


def test_patience_begins_at_the_full_length(tmp_path: Path) -> None:
    """Evaluations of shorter sequences neither end a run nor count against it."""
    given = ("--task", "swap", "--core", "gru", "--core-options", "hidden_size", "8", "--device", "cpu",
             "--evaluate-every", "1", "--batch-size", "32", "--learning-rate", "1e-9", "--patience", "2",
             "--updates", "40")  # fmt: skip
    probe(tmp_path / "short", *given, "--task-options", "length", "2", "longest", "4")
    assert int(rows(tmp_path / "short")[-1]["step"]) == 40  # never grew
    probe(tmp_path / "full", *given, "--task-options", "length", "2", "longest", "2")
    steps = [int(row["step"]) for row in rows(tmp_path / "full")]
    scores = [float(row["final_accuracy"]) for row in rows(tmp_path / "full")]
    best = scores.index(max(scores))
    assert steps[-1] < 40 and len(scores) == best + 1 + 3  # more than two without a better one


def test_a_kill_between_the_two_writes_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tested is the best weights, whatever was written last."""
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 8)
    given = ("--task", "text", "--task-options", "path", str(text), "--core", "gru", "--updates", "4",
             "--evaluate-every", "2")  # fmt: skip
    probe(tmp_path / "whole", *given)
    save = run_module.save_checkpoint

    def dies(run_dir: Path, step: int, *others: Any) -> None:
        if step == 4 and run_dir.name != "best":
            raise Killed
        save(run_dir, step, *others)

    monkeypatch.setattr(run_module, "save_checkpoint", dies)
    with pytest.raises(Killed):
        probe(tmp_path / "killed", *given)
    monkeypatch.setattr(run_module, "save_checkpoint", save)
    probe(tmp_path / "killed", *given)
    whole, killed = (
        json.loads((tmp_path / name / "scores.json").read_text()) for name in ("whole", "killed")
    )
    assert whole == killed


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--task swap --task-options swaps 0", "swaps is 0; give at least 1"),
        ("--task swap --task-options elements 1", "elements is 1; give at least 2"),
        ("--task code --task-options statements 1", "statements is 1; give at least 2"),
        ("--task code --task-options variables 0", "variables is 0; give 1 to "),
        ("--task dag --task-options nodes 5", "nodes is 5; give an even number, at least 4"),
        ("--task swap --checkpoint-minutes inf", "--checkpoint-minutes inf; it must be finite"),
        ("--task swap --updates 0", "--updates 0; it must be at least 1"),
        ("--task swap --batch-size 0", "--batch-size 0; it must be at least 1"),
        ("--task swap --evaluate-every 0", "--evaluate-every 0; it must be at least 1"),
        ("--task listops --dropout 1.5", "--dropout 1.5; it must be from 0 to less than 1"),
        ("--task swap --seed -1", "--seed -1; it must not be negative"),
        ("--task swap --max-grad-norm -1", "--max-grad-norm -1.0; it must not be negative"),
        ("--task swap --learning-rate -1", "--learning-rate -1.0; it must be positive"),
        ("--task swap --task-options longest abc", "longest is 'abc'; it takes a whole number"),
        ("--task swap --task-options longest 3", "longest is 3, less than the length 16 to begin with"),
        ("--task retrieval --task-options size 5000", "size is 5000; give 2 to 1000"),
        ("--task retrieval --core delta_net --core-options hidden_size 32", "Add --shell on for"),
        ("--task retrieval --core delta_net --dropout 0.1", "has none; omit it, or add --shell on"),
        ("--task code --task-options variant text", "--variant code or --variant text"),
        ("--task text --task-options path TEXT span 0", "span is 0; give at least 1"),
        ("--task text --task-options path TEXT words 5", "give a number of words at level word"),
        ("--task text --task-options path TEXT --batch-size 1000", "give a longer text or a smaller"),
        ("--task snr --core lstm", "--core: --task snr trains nothing; omit it"),
    ],
)  # fmt: skip
def test_what_cannot_be(given: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line, and leaves nothing behind."""
    text = tmp_path / "text"
    text.write_bytes(b"some words\n" * 100)
    run = tmp_path / "run"
    words = given.replace("TEXT", str(text)).split()
    where = [] if "snr" in words else ["--device", "cpu", "--run-dir", str(run)]
    assert says in refused(capsys, "probe", *words, *where)
    assert not run.exists()


def test_runs_of_other_commands_and_texts_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, run = tmp_path / "text", tmp_path / "run"
    text.write_bytes(bytes(range(256)) * 8)
    given = ("--task", "text", "--task-options", "path", str(text), "--core", "gru", "--updates", "2")
    probe(run, *given)
    for command in (["eval", str(run)], ["train", "--env", "CartPole-v1", "--run-dir", str(run)]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert f"{run} holds a run of probe, not of train" in capsys.readouterr().err
    text.write_bytes(bytes(reversed(range(256))) * 8)
    assert "is another than it began with" in refused(capsys, "probe", *given, "--run-dir", str(run))
