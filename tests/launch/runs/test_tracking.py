"""A run's log in Weights & Biases and MLflow, read back from what they keep without a server."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltabeast.launch.cli import main
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.errors import RunError
from deltabeast.launch.runs.log import RunLog, read_rows
from deltabeast.launch.runs.sinks import FailSafeSink, Sink
from deltabeast.launch.runs.tracking import NAMES, open_tracker

TRAIN = (
    *("train", "--env", "CartPole-v1", "--core", "lstm", "--core-options", "hidden_size", "8", "--seed", "3"),
    *("--num-envs", "4", "--batch-size", "4", "--unroll-length", "10", "--num-workers", "1"),
    *("--log-seconds", "0.001", "--device", "cpu"),
)


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No service is reached: what would be sent is kept below `tmp_path`."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def wandb_records(folder: Path) -> Iterator[Any]:
    """The records of the .wandb files below a folder, oldest first: LevelDB's log format behind 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    for file in sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        content, at, record = file.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if (left := 32768 - at % 32768) < 7:  # a block ends with zeros
                at += left
                continue
            _, size, kind = struct.unpack("<IHB", content[at : at + 7])
            record += content[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # whole, or its last part
                yield wandb_internal_pb2.Record.FromString(record)
                record = b""


def wandb_history(folder: Path) -> tuple[list[str], list[dict[str, float]]]:
    """The names of the tracked runs, one for each time that one was opened, and all rows."""
    import wandb

    wandb.teardown()  # its own process writes: it has when it is gone
    records = list(wandb_records(folder))
    opened = [each.run.run_id for each in records if each.WhichOneof("record_type") == "run"]
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in each.history.item}
        for each in records
        if each.WhichOneof("record_type") == "history"
    ]
    return opened, rows


def train(run_dir: Path, *options: str) -> list[dict[str, float]]:
    main([*TRAIN, "--run-dir", str(run_dir), *options])
    return read_rows(run_dir / "logs.csv")


def test_wandb_gets_every_row_and_a_resumed_run_goes_on_in_its_own(tmp_path: Path) -> None:
    run_dir = tmp_path / "CartPole" / "lstm" / "seed-3"
    train(run_dir, "--track", "wandb", "--steps", "200")
    name = json.loads((run_dir / NAMES).read_text())["wandb"]
    rows = train(run_dir, "--track", "wandb", "--steps", "400")
    opened, sent = wandb_history(run_dir / "wandb")
    assert set(opened) == {name}
    assert [row["step"] for row in sent] == [row["step"] for row in rows]
    assert [row["loss/total"] for row in sent] == pytest.approx([row["total_loss"] for row in rows], rel=1e-6)
    assert sent[-1]["step"] == 400
    other = tmp_path / "CartPole" / "lstm" / "seed-4"
    train(other, "--track", "wandb", "--steps", "40", "--seed", "4")
    assert json.loads((other / NAMES).read_text())["wandb"] != name


def test_mlflow_gets_every_row_and_a_resumed_run_goes_on_in_its_own(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    run_dir = tmp_path / "CartPole" / "lstm" / "seed-3"
    train(run_dir, "--track", "mlflow", "--steps", "200")
    rows = train(run_dir, "--track", "mlflow", "--steps", "400")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("deltabeast")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "CartPole/lstm/seed-3" and run.info.status == "FINISHED"
    assert run.data.params["core"] == "lstm" and run.data.params["seed"] == "3"
    losses = client.get_metric_history(run.info.run_id, "loss/total")
    assert [(each.step, each.value) for each in losses] == [
        (row["step"], pytest.approx(row["total_loss"], rel=1e-6)) for row in rows
    ]


def test_a_probe_is_tracked_too(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    task = (
        "--task swap --core lstm --core-options hidden_size 8 --updates 4 --evaluate-every 2 --batch-size 4"
    )
    main(["probe", *task.split(), "--device", "cpu", "--track", "wandb", "--run-dir", str(run_dir)])
    _, sent = wandb_history(run_dir / "wandb")
    assert [row["step"] for row in sent] == [2, 4] and "other/train_loss" in sent[0]


@pytest.mark.parametrize("service", ["wandb", "mlflow"])
def test_without_the_package_it_is_one_line(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, service, raising=False)
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", "--track", service, "--steps", "40")
    assert ended.value.code == 2 and not (tmp_path / "run").exists()
    assert f"--track {service} needs its package: pip install {service}" in capsys.readouterr().err


def test_a_tracked_run_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / NAMES).write_text('{"mlflow": "0123456789abcdef0123456789abcdef"}')
    with pytest.raises(
        RunError, match=r"^--track mlflow: Run '0123\w+' not found; .*remove \S+/tracking.json to begin"
    ):
        open_tracker("mlflow", tmp_path, True, print)
    open_tracker("mlflow", tmp_path, False, print).close()  # another run does not ask for it


def test_a_service_that_refuses_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://here")
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", "--track", "mlflow", "--steps", "40")
    assert ended.value.code == 1 and "mend MLFLOW_TRACKING_URI" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.json").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_service_that_fails_later_is_named_once_and_the_log_goes_on(tmp_path: Path) -> None:
    class Failing(Sink):
        def options(self, options: object, headline: object) -> None:
            pass

        def log(self, step: int, metrics: object, at: float) -> None:
            raise OSError("no route\nto host")

        def close(self) -> None:
            raise AssertionError("it is not asked again")

    said: list[str] = []
    with RunLog(tmp_path, tracker=FailSafeSink("--track wandb", Failing, said.append)) as log:
        log.hyperparameters(vars(TrainConfig()))
        log.write(1, {"sps": 1.0})
        log.write(2, {"sps": 2.0})
    assert said == ["--track wandb: no route; the run goes on without it"]
    assert [row["sps"] for row in read_rows(tmp_path / "logs.csv")] == [1, 2]
