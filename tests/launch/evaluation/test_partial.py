"""Episodes that do not end: what ended is scored and saved, the rest counted; the exit code says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import training_in_process
from command_line import run
from training_in_process import FEEDFORWARD

from deltabeast.launch.training.evaluations import Evaluations

ENV = ("--env", "training_envs:SometimesEndless-v0", *FEEDFORWARD)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("endless") / "run"
    training_in_process.run(run_dir, *ENV, "--steps", "20")
    return run_dir


def evaluate(run_dir: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    trust = ("--trust-env", "training_envs:SometimesEndless-v0")
    return run(capsys, "eval", str(run_dir), *trust, "--repeats", "2", *options)


def test_what_ended_is_scored_and_the_rest_counted(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = evaluate(trained, capsys, "--episodes", "4", "--max-episode-steps", "30")
    assert code == 1
    assert "trained: scores are of the 6 of 8 episodes that ended; 2 went on for too long" in out
    assert error.startswith("deltabeast: error: 2 of 8 episodes are in no score") and error.count("\n") == 1
    assert "train with --env-options max_episode_steps N, or raise --max-episode-steps" in error
    assert "--protocol" not in error, "which such an environment does not have"
    (saved,) = (trained / "eval").glob("*.json")
    result = json.loads(saved.read_text())["results"]["trained"]
    assert (result["unfinished"], result["summary"]["life"]["count"]) == (2, 6)
    saved.unlink()


def test_where_all_ended_nothing_is_said(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = evaluate(trained, capsys, "--episodes", "2", "--max-episode-steps", "10")
    assert (code, error) == (0, "") and "too long" not in out
    for saved in (trained / "eval").glob("*.json"):
        saved.unlink()


def test_where_none_ended_there_is_no_score(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = evaluate(trained, capsys, "--episodes", "2", "--max-episode-steps", "9")
    assert code == 1 and error.startswith("deltabeast: error: no episode ended within --max-episode-steps 9")
    assert not list((trained / "eval").glob("*.json"))


@pytest.mark.usefixtures("quick_children")
def test_a_curve_has_what_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Evaluations._eval_config
    monkeypatch.setattr(Evaluations, "_eval_config", lambda self: replace(config(self), max_episode_steps=30))
    training_in_process.run(tmp_path / "run", *ENV, "--steps", "40", "--eval-every", "40")
    said = capsys.readouterr().out
    assert (
        "evaluated at step 40: life return 10.0" in said and "evaluation of step 40: 5 of 20 episodes" in said
    )
