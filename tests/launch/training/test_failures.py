"""Runs that fail: the reason is told, and the last good weights are saved."""

from __future__ import annotations

import errno
import math
import os
import signal
from pathlib import Path

import pytest
import training_envs
from training_in_process import EXACT, FEEDFORWARD, as_on_a_gpu, listen, on_update, run
from training_process import (
    CARTPOLE,
    Training,
    last_step,
    newest,
    rows,
)

from deltabeast.agents import Actor, Learner, NonFiniteError
from deltabeast.envs import EnvironmentFailed
from deltabeast.launch.errors import RunError, StoppedBySignal
from deltabeast.launch.processes import supervision
from deltabeast.launch.training.engine import ActorError
from deltabeast.launch.training.evaluations import Evaluations
from deltabeast.launch.training.local import sources

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_an_actor_that_raises_ends_the_run_with_its_traceback(overlap: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    training = Training(run_dir, "--env", "training_envs:Raises-v0", *FEEDFORWARD, "--overlap", overlap)
    assert training.wait(30) == 1
    output = training.output()
    assert "Traceback" in output and 'raise KeyError("the emulator broke")' in output
    assert (
        "error: training_envs:Raises-v0: step failed: KeyError: 'the emulator broke'; step 360 is saved in"
        in output
    )
    assert "deltabeast/agents" not in output, "the traceback is of the environment alone"
    assert newest(run_dir)[0] == 360, "all that was collected before"


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_after_an_actor_failed_the_run_can_go_on(
    overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (
        *FEEDFORWARD,
        "--overlap",
        overlap,
        "--num-actors",
        "2",
        "--steps",
        "1000",
        "--log-seconds",
        "0",
    )
    arguments = ("--env", "training_envs:Raises-v0", *arguments)
    with pytest.raises(
        RunError, match=r"^training_envs:Raises-v0: step failed.*; step \d+ is saved in"
    ) as raised:
        run(tmp_path, *arguments)
    assert isinstance(raised.value.__cause__, ActorError)
    assert isinstance(raised.value.__cause__.__cause__, EnvironmentFailed)
    step = newest(tmp_path)[0]
    assert step == last_step(tmp_path) > 0
    monkeypatch.setattr(training_envs, "FAILS_AT", math.inf)
    run(tmp_path, *arguments)
    assert newest(tmp_path)[0] == 1000 and [int(r["step"]) for r in rows(tmp_path)] == list(
        range(20, 1001, 20)
    )


def test_an_actor_without_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(self: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(Actor, "collect", fails)
    with pytest.raises(RunError, match=r"^out of memory: give a smaller --unroll-length, --num"):
        run(tmp_path, *CARTPOLE, "--steps", "200")
    assert "Traceback" not in capsys.readouterr().out


def test_a_learner_that_fails_is_named_and_its_weights_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backward = Learner.backward

    def fails(self: Learner, batch: object) -> object:
        if self.steps >= 100:
            raise error
        return backward(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Learner, "backward", fails)
    error: Exception = TypeError("a bug in a core")
    with pytest.raises(RunError, match=r"^the learner failed: TypeError.*step 100 is saved"):
        run(tmp_path, *CARTPOLE, "--steps", "200")
    assert newest(tmp_path)[0] == 100
    assert "a bug in a core" in capsys.readouterr().out
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    with pytest.raises(RunError, match=r"^out of memory: .*--batch-size; step 100 is saved"):
        run(tmp_path, *CARTPOLE, "--steps", "200")


def test_evaluations_that_cannot_be_written_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Evaluations, stopped: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Evaluations, "finish", fails)
    with pytest.raises(RunError, match=r"No space left on device.*step 60 is saved"):
        run(tmp_path, *CARTPOLE, "--steps", "60", "--eval-every", "40")
    assert newest(tmp_path)[0] == 60


def test_a_failure_does_not_replace_a_checkpoint_of_the_same_step(tmp_path: Path) -> None:
    """That one knows where the environments were; after the failure nobody does."""
    arguments = ("--env", "training_envs:Raises-v0", *FEEDFORWARD, *EXACT, "--checkpoint-minutes", "0")
    arguments += ("--steps", "1000")
    with pytest.raises(RunError, match="step 360 is saved"):
        run(tmp_path, *arguments)
    assert newest(tmp_path)[2]["actors"] is not None


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("NanReward", "step returned reward nan, which is not a finite number; correct the environment"),
        ("NanObservation", r"an observation holds nan, and its space is Box\(.*"),
    ],
)
def test_what_is_not_finite_ends_the_run_before_it_is_learned_from(
    kind: str, told: str, overlap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--env", f"training_envs:{kind}-v0", *FEEDFORWARD, "--overlap", overlap)
    with pytest.raises(RunError, match=f"^training_envs:{kind}-v0: {told}; step 360 is saved"):
        run(tmp_path, *arguments, "--steps", "1000")
    assert newest(tmp_path)[0] == 360
    assert "Traceback" not in capsys.readouterr().out, "nothing was raised in its code"


@pytest.mark.parametrize(("kind", "named"), [("Overflows", "behaviour logits")])
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("gpu", [False, True])
def test_what_is_not_finite_is_named_and_good_weights_are_saved(
    kind: str, named: str, overlap: str, gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu:
        as_on_a_gpu(monkeypatch)
    arguments = ("--env", f"training_envs:{kind}-v0", *FEEDFORWARD, "--overlap", overlap, "--steps", "1000")
    with pytest.raises(RunError, match=f"not finite: first in ({named}); step 360 is saved") as raised:
        run(tmp_path, *arguments)
    assert isinstance(raised.value.__cause__, NonFiniteError)
    step, weights, state = newest(tmp_path)
    assert step == 360
    assert all(tensor.isfinite().all() for tensor in weights.values())
    averages = [s["square_avg"] for s in state["learner"]["optimizer"]["state"].values()]
    assert averages and all(tensor.isfinite().all() for tensor in averages)


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(learner: Learner) -> None:
        if learner.version == 7:
            learner.agent.policy.weight.register_hook(lambda gradient: gradient * math.nan)

    on_update(monkeypatch, act)
    with pytest.raises(RunError, match=r"gradient norm of update 8 .* gradient of .*; step 140 is saved"):
        run(tmp_path, *CARTPOLE, "--steps", "1000")
    step, weights, _ = newest(tmp_path)
    assert step == 140 and all(tensor.isfinite().all() for tensor in weights.values())


def test_broken_weights_are_named_and_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(learner: Learner) -> None:
        if learner.version == 7:
            learner.agent.baseline.weight.data[0, 3] = math.nan

    on_update(monkeypatch, act)
    with pytest.raises(
        RunError,
        match=r"loss of update 8 .* first in baseline\.weight; baseline\.weight is not finite; step 0 is",
    ):
        run(tmp_path, *CARTPOLE, "--steps", "1000")
    step, weights, _ = newest(tmp_path)
    assert step == 0 and all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_the_watchdog_says_what_the_run_waits_for(
    overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "SILENCE", 0.3)
    said = listen(monkeypatch, "no update for", training_envs.RELEASED.set)
    arguments = ("--env", "training_envs:Stalls-v0", *FEEDFORWARD, "--overlap", overlap)
    run(tmp_path, *arguments, "--steps", "800")
    silent = [message for message in said if message.startswith("no update for")]
    assert silent and all("learner: waiting; actor 0: emulation" in message for message in silent)
    assert newest(tmp_path)[0] == 800, "it went on"


def test_a_hanging_actor_does_not_keep_a_stopped_run_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "SILENCE", 0.3)
    monkeypatch.setattr(sources, "_PATIENCE", 0.3)
    said = listen(monkeypatch, "no update for", lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StoppedBySignal):
        run(tmp_path, "--env", "training_envs:Stalls-v0", *FEEDFORWARD, "--overlap", "on")
    assert newest(tmp_path)[0] == last_step(tmp_path) == 360, "and no update is missing from the log"
    assert any(message.startswith("stopping after this update") for message in said)
    assert said[-1].startswith("stopped at 360 of ")
