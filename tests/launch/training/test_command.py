"""Wrong input is told in one line, before anything is written."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from training_in_process import run
from training_process import (
    CARTPOLE,
    Training,
    last_step,
    newest,
)

from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.runs.directory import claim
from deltabeast.launch.training.command import train

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


WRONG = {
    "mistyped game": (("--game", "gofer"), "gopher"),
    "mistyped environment": (("--env", "CartPol-v1"), "CartPole"),
    "no environment": ((), "no environment given"),
    "game and environment": (("--game", "pong", "--env", "CartPole-v1"), "give one of them"),
    "steps": ((*CARTPOLE, "--steps", "many"), "'many' is not a number of agent steps"),
    "no steps": ((*CARTPOLE, "--steps", "0"), "less than one agent step"),
    "milestones": ((*CARTPOLE, "--milestone-steps", "x"), "'x' is not a number"),
    "sizes": ((*CARTPOLE, "--num-envs", "6", "--batch-size", "4"), "one must be a multiple of the other"),
    "minibatches": (
        (*CARTPOLE, "--minibatch-size", "3"),
        "--minibatch-size 3: it must divide --batch-size 4",
    ),
    "no passes": ((*CARTPOLE, "--passes", "0"), "--passes 0; it must be from 1 to 65536"),
    "replayed": (
        (*CARTPOLE, "--replay-ratio", "0.3"),
        "--replay-ratio 0.3: times --batch-size 4 it is 1.2 trajectories; give a ratio that makes it a whole",
    ),
    "replayed in minibatches": (
        (*CARTPOLE, "--replay-ratio", "0.25", "--minibatch-size", "2"),
        "times --minibatch-size 2 it is 0.5 trajectories",
    ),
    "negative replay": ((*CARTPOLE, "--replay-ratio", "-1"), "--replay-ratio -1.0; it must not be negative"),
    "no replay": (
        (*CARTPOLE, "--replay-buffer", "1M", "--burn-in", "10"),
        "--replay-buffer, --burn-in: only with --replay-ratio; add that, or leave",
    ),
    "small buffer": (
        (*CARTPOLE, "--replay-ratio", "1", "--replay-buffer", "39"),
        "--replay-buffer 39: it must hold two batches; give 40 or more",
    ),
    "buffer": ((*CARTPOLE, "--replay-ratio", "1", "--replay-buffer", "big"), "--replay-buffer: 'big' is not"),
    "huge buffer": (
        (*CARTPOLE, "--replay-ratio", "1", "--replay-buffer", "900B"),
        "no memory for a replay buffer of this size",
    ),
    "buffer in checkpoints": (
        (*CARTPOLE, "--replay-ratio", "1", "--replay-buffer", "10M", "--deterministic"),
        "in each checkpoint of --deterministic, at most 1.0 GiB; give a smaller one",
    ),
    "burn-in": (
        (*CARTPOLE, "--replay-ratio", "1", "--burn-in", "7"),
        "--burn-in 7: it must be a multiple of --unroll-length 5",
    ),
    "burn-in at several learners": (
        (*CARTPOLE, "--replay-ratio", "1", "--burn-in", "5", "--engine", "ray", "--num-learners", "2"),
        "--burn-in 5: with --num-learners 2 an environment's unrolls go to several learners",
    ),
    "lambda": ((*CARTPOLE, "--vtrace-lambda", "1.5"), "--vtrace-lambda 1.5; it must be from 0 to 1"),
    "no environments": ((*CARTPOLE, "--num-envs", "0"), "--num-envs 0; it must be from 1 to 65536"),
    "unroll length": ((*CARTPOLE, "--unroll-length", "0"), "--unroll-length 0; it must be from 1"),
    "core": ((*CARTPOLE, "--core", "rdnn"), "did you mean rdn"),
    "core option": (("--env", "CartPole-v1", "--core", "lstm", "--core-options", "size", "3"), "lstm"),
    "nothing to resume": ((*CARTPOLE, "--resume", "must"), "--resume must: no checkpoint in"),
    "no GPU": ((*CARTPOLE, "--device", "cuda"), "torch sees no GPU here"),
    "device": ((*CARTPOLE, "--device", "gpu"), "choose auto, cpu or cuda"),
    "negative seed": ((*CARTPOLE, "--seed", "-1"), "--seed -1"),
    "huge seed": ((*CARTPOLE, "--seed", str(2**64)), "--seed 18446744073709551616"),
    "learning rate": ((*CARTPOLE, "--learning-rate", "nan"), "--learning-rate nan; it must be finite"),
    "discount": ((*CARTPOLE, "--discount", "1.5"), "--discount 1.5; it must be from 0 to 1"),
    "turns and threads": ((*CARTPOLE, "--deterministic", "--overlap", "on"), "excludes --overlap on"),
    "the same and other code": ((*CARTPOLE, "--deterministic", "--compile", "on"), "excludes --compile on"),
    "no engine": (
        (*CARTPOLE, "--ray-address", "auto", "--num-learners", "2"),
        "--ray-address, --num-learners: only with --engine ray; add that, or leave",
    ),
    "stem": ((*CARTPOLE, "--stem", "residual"), "residual"),
    "protocol": ((*CARTPOLE, "--protocol", "paper-code"), "--protocol paper-code: it is for Atari by --game"),
    "flicker": (("--game", "pong", "--flicker", "1.5"), "--flicker 1.5; it must be from 0 to less than 1"),
    "blinking always": (("--game", "pong", "--blink", "1"), "--blink 1.0; it must be from 0 to less"),
    "no ball": (
        ("--game", "ms_pacman", "--blink", "0.5"),
        "ms_pacman: only the ball of breakout and pong can blink",
    ),
    "flicker always": (("--game", "pong", "--flicker", "1"), "--flicker 1.0; it must be from 0 to less"),
    "frame stack": (("--game", "pong", "--frame-stack", "5"), "--frame-stack 5; it must be from 1 to 4"),
    "reward clip": ((*CARTPOLE, "--reward-clip", "-1"), "--reward-clip -1.0; it must not be negative"),
    "too long": ((*CARTPOLE, "--log-seconds", "inf"), "--log-seconds inf; it must be finite"),
    "actions of no game": (
        (*CARTPOLE, "--num-actions", "6"),
        "--num-actions 6: only actions of --game are cut",
    ),
    "actions": (
        ("--game", "breakout", "--num-actions", "6"),
        "--num-actions 6: breakout has 4 actions; omit it",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_input_is_told_in_one_line_before_anything_is_written(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments, message = WRONG[wrong]
    with pytest.raises(UsageError) as raised:
        train(parse(["train", *arguments, "--run-dir", "run"] if wrong != "steps" else ["train", *arguments]))
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_wrong_input_exits_with_2(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", "--game", "gofer")
    assert training.wait() == 2
    assert training.output().count("\n") == 1 and "gopher" in training.output()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["a file", "below a file", "below nothing that may be made"])
def test_a_run_directory_that_cannot_be(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    run_dir = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "run"}.get(
        place, Path("/proc/x/run")
    )
    with pytest.raises(UsageError, match=rf"cannot write to {run_dir}: .*; give another --run-dir"):
        run(run_dir, *CARTPOLE, "--steps", "20")
    assert (tmp_path / "file").read_text() == "mine"


def test_missing_parents_are_made(tmp_path: Path) -> None:
    run(tmp_path / "a" / "b", *CARTPOLE, "--steps", "20")
    assert newest(tmp_path / "a" / "b")[0] == 20
    assert json.loads((tmp_path / "a" / "b" / "config.json").read_text())["config"]["env"] == "CartPole-v1"


def test_one_process_a_run(tmp_path: Path) -> None:
    """The second is refused; the claim of a killed one is void."""
    run_dir = tmp_path / "run"
    other = Training(run_dir, *CARTPOLE, "--steps", "1M", "--log-seconds", "0")
    assert other.wait_for(lambda: last_step(run_dir) >= 20), other.output()
    with pytest.raises(UsageError, match=r"another process trains in .*; stop it or give another --run-dir"):
        run(run_dir, *CARTPOLE, "--steps", "100")
    other.send(signal.SIGKILL)
    other.wait()
    with claim(run_dir), pytest.raises(UsageError, match="another process trains in"), claim(run_dir):
        pass
