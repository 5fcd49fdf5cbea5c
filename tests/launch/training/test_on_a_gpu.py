"""Whole runs on a GPU: threads, groups, graphs, compiled updates, checkpoints and evaluation together."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from training_process import Training, assert_same_run, last_step, newest, rows

from deltabeast.launch.cli import main

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SIZES = ("--num-envs", "8", "--batch-size", "8", "--unroll-length", "10", "--device", DEVICE)
RUNS = {
    "vectors": ("--env", "CartPole-v1", "--core", "rdn"),
    "frames": ("--game", "pong", "--core", "lstm", "--stem", "nature"),
    "two actors": ("--game", "pong", "--core", "delta_net", "--stem", "nature", "--num-actors", "2"),
    "compiled": ("--game", "pong", "--core", "rdn", "--stem", "nature", "--compile", "on"),
    "as it is": ("--env", "CartPole-v1", "--core", "delta_rnn", "--compile", "off"),
    "values normalised": ("--env", "CartPole-v1", "--core", "lstm", "--normalise-values"),
    "replay": ("--game", "pong", "--core", "lstm", "--stem", "nature", "--replay-ratio", "1"),
    "in turns": ("--env", "CartPole-v1", "--core", "linear_transformer", "--overlap", "off"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_stopped_and_goes_on(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*RUNS[name], *SIZES, "--log-seconds", "0")
    training = Training(tmp_path, *arguments, "--steps", "10M", daemon=False)
    assert training.wait_for(lambda: last_step(tmp_path) >= 1600, 400), training.output()
    training.send(signal.SIGTERM)
    assert training.wait(60) == -signal.SIGTERM
    step = newest(tmp_path)[0]
    assert step == last_step(tmp_path)
    resumed = Training(tmp_path, *arguments, "--steps", str(step + 1600), daemon=False)
    assert resumed.wait(400) == 0, resumed.output()
    assert f"resuming {tmp_path} at step {step}" in resumed.output()
    for said in (training.output(), resumed.output()):
        assert "no CUDA graph" not in said and "torch.compile fails" not in said
    step, weights, _ = newest(tmp_path)
    assert step == last_step(tmp_path) and all(x.isfinite().all() for x in weights.values())
    lags = [float(row["policy_lag_max"]) for row in rows(tmp_path)]
    assert max(lags) == 0 if name == "in turns" else 0 < max(lags) <= 8
    main(["eval", str(tmp_path), "--episodes", "1", "--repeats", "2", "--device", DEVICE])
    assert "2 x 1 episodes" in capsys.readouterr().out


def test_deterministic_runs_repeat_themselves(tmp_path: Path) -> None:
    arguments = (*RUNS["frames"], *SIZES, "--deterministic")
    for name, seed in (("one", "5"), ("other", "5"), ("third", "6")):
        training = Training(tmp_path / name, *arguments, "--steps", "800", "--seed", seed, daemon=False)
        assert training.wait(300) == 0, training.output()
    assert_same_run(tmp_path / "one", tmp_path / "other")
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "one", tmp_path / "third")
