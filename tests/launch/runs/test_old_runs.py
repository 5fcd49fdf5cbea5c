"""Runs that version 0.1.0 wrote (commit a9da91a) are resumed, evaluated, described and compared.

`runs_of_version_0_1` holds the first 700 steps of Recall-v0 with an RDN and an LSTM, the latter without its
checkpoint. Both stopped in the middle of their games.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from training_process import newest, rows

from deltabeast.agents import load_agent
from deltabeast.launch.cli import main
from deltabeast.launch.comparison.grouping import compare
from deltabeast.launch.comparison.runs import find_runs, read_run
from deltabeast.launch.runs.describe import describe_run
from deltabeast.launch.runs.directory import read_config

RECALL = "training_envs:Recall-v0"
TO_GO_ON = (
    f"--env {RECALL} --core rdn --core-options hidden_size 16 num_heads 2 ff_size 16 num_layers 1 "
    "--num-envs 4 --batch-size 4 --unroll-length 5 --device cpu --precision fp32 --num-workers 1 "
    "--deterministic --log-seconds 0 --steps 900 --resume must"
).split()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    shutil.copytree(Path(__file__).parent / "runs_of_version_0_1", folder)
    return folder


def test_an_old_run_is_resumed_in_the_middle_of_its_games(runs: Path) -> None:
    run_dir = runs / "rdn" / "seed-1"
    before, was = rows(run_dir), newest(run_dir)
    assert was[0] == 700
    main(["train", *TO_GO_ON, "--run-dir", str(run_dir)])
    step, weights, state = newest(run_dir)
    assert step == 900 and state["learner"]["version"] == was[2]["learner"]["version"] + 10
    assert any((weights[name] != old).any() for name, old in was[1].items())
    assert rows(run_dir)[: len(before)] == before and len(rows(run_dir)) == len(before) + 10
    assert load_agent(run_dir).spec.observations == "plain" == read_config(run_dir)["observations"]


def test_an_old_run_is_evaluated_and_plays_as_it_did(runs: Path) -> None:
    run_dir = runs / "rdn" / "seed-1"
    (saved,) = (run_dir / "eval").glob("*.json")
    main(
        ["eval", str(run_dir), "--episodes", "3", "--repeats", "2", "--device", "cpu", "--trust-env", RECALL]
    )
    (made,) = set((run_dir / "eval").glob("*.json")) - {saved}
    old, new = (json.loads(path.read_text())["results"]["trained"]["game"] for path in (saved, made))
    assert new == old and len(old["returns"]) == 2


def test_old_runs_are_described(runs: Path) -> None:
    lines = dict(describe_run(runs / "rdn" / "seed-1"))
    options = "hidden_size 16, num_heads 2, ff_size 16, num_layers 1"
    assert lines["trains"] == f"{RECALL} · rdn ({options}) · mlp · seed 1"
    assert lines["observations"] == "read as a vector of 2 numbers, as they come"
    assert lines["progress"].startswith("step 700 of 700") and lines["checkpoints"] == "700"
    assert "damaged" not in lines and lines["next"].startswith("finished; deltabeast eval ")


def test_old_runs_are_compared(runs: Path) -> None:
    found, problems = find_runs([str(runs)])
    read = [read_run(path) for path in found]
    both = {run.core: run for run, _ in read if run is not None}
    assert not problems and both.keys() == {"lstm", "rdn"}
    assert not any(wrong for _, wrong in read)
    assert all(run.last_step == 700 and len(run.evaluations) == 1 for run in both.values())
    comparison = compare(list(both.values()))
    assert comparison.games == [RECALL] and not comparison.left_out
    assert {comparison.core_of[series] for series in comparison.series} == {"lstm", "rdn"}
