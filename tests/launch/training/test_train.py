"""Training: the same run twice, stopped and resumed; what is refused; how it ends when something fails."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import tape
import torch
import training_envs
from training_process import (
    CARTPOLE,
    TINY,
    Training,
    assert_same_run,
    last_step,
    metrics,
    newest,
    rows,
)

from deltabeast.agents import Learner, NonFiniteError, find_checkpoints, learner, load_latest
from deltabeast.agents.cuda import graphs as captured
from deltabeast.cores import core_name
from deltabeast.launch.cli import parse
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.errors import RunError, StoppedBySignal, UsageError
from deltabeast.launch.processes import supervision
from deltabeast.launch.runs import directory
from deltabeast.launch.runs.directory import claim, default_run_dir, read_config
from deltabeast.launch.training import plan
from deltabeast.launch.training.command import train
from deltabeast.launch.training.engine import ActorError
from deltabeast.launch.training.local import sources
from deltabeast.launch.training.local.engine import LocalEngine
from deltabeast.launch.training.panel import Panel
from deltabeast.launch.training.run import Run

FEEDFORWARD = ("--core", "feedforward", "--num-envs", "4", "--batch-size", "4", "--unroll-length", "5",
               "--device", "cpu", "--precision", "fp32", "--num-workers", "1")  # fmt: skip
EXACT = ("--deterministic", "--log-seconds", "0")


class Killed(BaseException):
    """Ends training on the spot: nothing may catch it and save."""


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test leaves no thread behind and the signals as they were."""
    before = set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    count = torch.get_num_threads()
    training_envs.RELEASED.clear()
    yield
    training_envs.RELEASED.set()
    torch.set_num_threads(count)
    end = time.monotonic() + 5.0
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left, left
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def run(run_dir: Path, *arguments: str) -> None:
    train(parse(["train", *arguments, "--run-dir", str(run_dir)]))


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are enqueued, and captured on a tape that stands in for a CUDA graph."""
    monkeypatch.setattr(learner, "_enqueues", lambda device: True)
    monkeypatch.setattr(captured, "record", tape.record)


def on_update(monkeypatch: pytest.MonkeyPatch, act: Callable[[Learner], Any], before: bool = True) -> None:
    """Call `act` with the learner before (or after) each of its updates."""
    half = "backward" if before else "step"
    original = getattr(Learner, half)

    def patched(learner: Learner, given: Any) -> Any:
        if before:
            act(learner)
        result = original(learner, given)
        if not before:
            act(learner)
        return result

    monkeypatch.setattr(Learner, half, patched)


def kill_at(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    def act(learner: Learner) -> None:
        if learner.version == version:
            raise Killed

    on_update(monkeypatch, act)


# The same run


LAYOUTS = {
    "one unroll an update": (4, 4, 1),
    "unrolls cut into four": (8, 2, 1),
    "two unrolls joined": (2, 4, 1),
    "actors in turns": (4, 4, 3),
    "actors joined out of step": (2, 4, 3),
    "cut unrolls in turns": (4, 2, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_and_a_stopped_run_end_like_an_uninterrupted_one(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Bit for bit, whatever the number of actors and environments, across games with seeds of their own."""
    num_envs, batch_size, num_actors = LAYOUTS[layout]
    updates = 24
    sizes = ("--num-envs", num_envs, "--batch-size", batch_size, "--num-actors", num_actors)
    steps = ("--steps", updates * batch_size * 5, "--seed", random.randrange(2**31))
    arguments = [str(a) for a in (*CARTPOLE, *EXACT, *sizes, *steps)]
    one, other = tmp_path / "one", tmp_path / "other"
    run(one, *arguments)

    with monkeypatch.context() as patch:
        kill_at(patch, random.randrange(3, 12))
        with pytest.raises(Killed):
            run(other, *arguments, "--checkpoint-minutes", random.choice(["0", "0.0005"]))
    stop = random.randrange(12, 20, 2)  # the update after it is in the middle of a cut unroll
    with monkeypatch.context() as patch:
        on_update(patch, lambda learner: learner.version == stop and os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(StoppedBySignal):
            run(other, *arguments)
    assert stop * batch_size * 5 < newest(other)[0] < updates * batch_size * 5, "stopped, and not half-way"
    run(other, *arguments)
    assert_same_run(one, other)


def test_a_core_that_draws_random_numbers_goes_on_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    arguments = ("--env", "CartPole-v1", *FEEDFORWARD, "--core", "training_envs:NoisyCore", *EXACT)
    arguments += ("--steps", "200", "--checkpoint-minutes", "0")
    run(tmp_path / "one", *arguments)
    with monkeypatch.context() as patch:
        kill_at(patch, 5)
        with pytest.raises(Killed):
            run(tmp_path / "other", *arguments)
    run(tmp_path / "other", *arguments)
    assert_same_run(tmp_path / "one", tmp_path / "other")


def test_the_seed_decides_weights_actions_and_environments(tmp_path: Path) -> None:
    arguments = (*CARTPOLE, *EXACT, "--steps", "60")
    run(tmp_path / "a", *arguments, "--seed", "5")
    run(tmp_path / "b", *arguments, "--seed", "5")
    run(tmp_path / "c", *arguments, "--seed", "6")
    assert_same_run(tmp_path / "a", tmp_path / "b")
    names = [f"checkpoints/{step:012d}/weights.safetensors" for step in (0, 60)]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "c" / name).read_bytes()
    assert metrics(tmp_path / "a")[0] != metrics(tmp_path / "c")[0]


def test_without_deterministic_a_resumed_run_goes_on_with_steps_schedule_and_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*CARTPOLE, "--log-seconds", "0", "--checkpoint-minutes", "0", "--steps", "800")
    with monkeypatch.context() as patch:
        kill_at(patch, 20)
        with pytest.raises(Killed):
            run(tmp_path, *arguments)
    step, _, state = newest(tmp_path)
    before = rows(tmp_path)
    assert step == state["learner"]["steps"] == 400 and state["learner"]["version"] == 20
    assert state["scores"]["best"] is not None
    # Other numbers of actors and environments are no obstacle.
    run(tmp_path, *arguments, "--num-actors", "2", "--num-envs", "2")
    after = rows(tmp_path)
    assert after[:20] == before and len(after) == 40
    assert float(after[20]["learning_rate"]) == pytest.approx(6e-4 * (1 - 400 / 800) * (1 - 0.99**21) ** 0.5)
    assert int(after[20]["episodes"]) >= int(before[-1]["episodes"])
    assert float(after[20]["best_game_return"]) >= state["scores"]["best"] - 1e-6
    assert [int(row["step"]) for row in after] == list(range(20, 801, 20))


def test_who_waits_for_the_compiler_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda run, **options: asked.append(run.__name__) or run)
    for wanted, steps, told in (("auto", "20", 0), ("on", "40", 1), ("on", "40", 0)):
        run(tmp_path, *CARTPOLE, "--steps", steps, "--compile", wanted)
        assert capsys.readouterr().out.count("compiling: the first update takes a minute") == told
    assert asked == ["loss", "rmsprop_if"] * 2


def test_a_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "40")
    before, checkpoint = rows(tmp_path), newest(tmp_path)[0]
    run(tmp_path, *CARTPOLE, "--steps", "40")
    assert rows(tmp_path) == before and newest(tmp_path)[0] == checkpoint
    assert capsys.readouterr().out.count("finished at 40 of 40 steps") == 2
    run(tmp_path, *CARTPOLE, "--steps", "80", "--resume", "must")
    assert newest(tmp_path)[0] == 80


def test_a_signal_between_the_update_and_its_row_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may come at any moment, also when it has been decided that this update is not the last."""
    update, calls = Panel.update, 0

    def patched(panel: Panel, step: int, row: dict[str, float]) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        update(panel, step, row)

    monkeypatch.setattr(Panel, "update", patched)
    with pytest.raises(StoppedBySignal) as stopped:
        run(tmp_path, *CARTPOLE, "--steps", "100k", "--log-seconds", "0")
    assert stopped.value.number == signal.SIGTERM
    assert newest(tmp_path)[0] == last_step(tmp_path) == 120
    assert "stopped at 120 of 100,000 steps" in capsys.readouterr().out


# What is refused


WRONG = {
    "mistyped game": (("--game", "gofer"), "gopher"),
    "mistyped environment": (("--env", "CartPol-v1"), "CartPole"),
    "no environment": ((), "no environment given"),
    "game and environment": (("--game", "pong", "--env", "CartPole-v1"), "give one of them"),
    "steps": ((*CARTPOLE, "--steps", "many"), "'many' is not a number of agent steps"),
    "no steps": ((*CARTPOLE, "--steps", "0"), "less than one agent step"),
    "milestones": ((*CARTPOLE, "--milestone-steps", "x"), "'x' is not a number"),
    "sizes": ((*CARTPOLE, "--num-envs", "6", "--batch-size", "4"), "one must be a multiple of the other"),
    "no environments": ((*CARTPOLE, "--num-envs", "0"), "--num-envs must be at least 1"),
    "unroll length": ((*CARTPOLE, "--unroll-length", "0"), "--unroll-length must be at least 1"),
    "core": ((*CARTPOLE, "--core", "rdnn"), "did you mean rdn"),
    "core option": ((*CARTPOLE, "--core", "lstm", "--core-options", "size", "3"), "lstm"),
    "nothing to resume": ((*CARTPOLE, "--resume", "must"), "--resume must: no checkpoint in"),
    "no GPU": ((*CARTPOLE, "--device", "cuda"), "torch sees no GPU here"),
    "device": ((*CARTPOLE, "--device", "gpu"), "choose auto, cpu or cuda"),
    "negative seed": ((*CARTPOLE, "--seed", "-1"), "--seed -1"),
    "huge seed": ((*CARTPOLE, "--seed", str(2**64)), "--seed 18446744073709551616"),
    "learning rate": ((*CARTPOLE, "--learning-rate", "nan"), "--learning-rate must be positive"),
    "discount": ((*CARTPOLE, "--discount", "1.5"), "--discount must lie between 0 and 1"),
    "turns and threads": ((*CARTPOLE, "--deterministic", "--overlap", "on"), "excludes --overlap on"),
    "the same and other code": ((*CARTPOLE, "--deterministic", "--compile", "on"), "excludes --compile on"),
    "no engine": (
        (*CARTPOLE, "--ray-address", "auto", "--num-learners", "2"),
        "--ray-address, --num-learners: only with --engine ray; add that, or omit",
    ),
    "stem": ((*CARTPOLE, "--stem", "residual"), "residual"),
    "protocol": ((*CARTPOLE, "--protocol", "paper-code"), "--protocol paper-code: protocols are for --game"),
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


def test_another_agent_or_a_run_that_must_not_be_there(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "20")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    for arguments, message in (
        ((*CARTPOLE, "--resume", "never"), "already holds a run; give another --run-dir or --seed"),
        ((*CARTPOLE, "--core", "delta_net"), "holds a run with core rdn, not delta_net"),
        ((*CARTPOLE, "--core-options", "hidden_size", "32", "num_heads", "2"), "core_options"),
        (("--env", "Acrobot-v1", *TINY), "holds a run with env_id CartPole-v1, not Acrobot-v1"),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            run(tmp_path, *arguments, "--steps", "40")
        assert "\n" not in str(raised.value)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    del before[tmp_path / ".lock"], after[tmp_path / ".lock"]
    assert before == after


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


def test_wrong_input_exits_with_2(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", "--game", "gofer")
    assert training.wait() == 2
    assert training.output().count("\n") == 1 and "gopher" in training.output()
    assert not (tmp_path / "run").exists()


def test_deterministic_cannot_take_over_another_run(tmp_path: Path) -> None:
    run(tmp_path / "free", *CARTPOLE, "--steps", "20")
    with pytest.raises(UsageError, match="under --deterministic: it was trained without it"):
        run(tmp_path / "free", *CARTPOLE, *EXACT, "--steps", "40")
    run(tmp_path / "exact", *CARTPOLE, *EXACT, "--steps", "20")
    with pytest.raises(UsageError, match="or with another --num-actors"):
        run(tmp_path / "exact", *CARTPOLE, *EXACT, "--num-actors", "2", "--steps", "40")
    with pytest.raises(UsageError, match="under --deterministic: actions must be 2 integers"):
        run(tmp_path / "exact", *CARTPOLE, *EXACT, "--num-envs", "2", "--steps", "40")
    run(tmp_path / "exact", *CARTPOLE, "--num-envs", "2", "--steps", "40")  # the remedy


def test_an_environment_that_does_not_repeat_itself_is_told(tmp_path: Path) -> None:
    # One bit is seen of each environment: of 32, all are the same by chance once in four billion runs.
    sizes = ("--num-envs", "32", "--batch-size", "32", "--unroll-length", "5", "--device", "cpu")
    arguments = ("--env", "training_envs:Forgets-v0", "--core", "feedforward", *sizes, *EXACT)
    run(tmp_path, *arguments, "--steps", "160")
    with pytest.raises(UsageError, match="the environment did not repeat itself") as raised:
        run(tmp_path, *arguments, "--steps", "320")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "device", "more", "wanted"),
    [
        (32, 32, "cuda", {}, 2),
        (256, 32, "cuda", {}, 2),
        (2, 32, "cuda", {}, 2),
        (1, 32, "cuda", {}, 1),
        (33, 33, "cuda", {}, 1),
        (48, 16, "cuda", {}, 1),  # 24 and 16: no whole batches
        (32, 32, "cuda", {"overlap": "off"}, 1),
        (32, 32, "cuda", {"deterministic": True}, 1),
        (32, 32, "cpu", {}, 1),
        (32, 32, "cpu", {"overlap": "on"}, 1),
    ],
)
def test_a_gpu_has_the_environments_in_two_groups(
    num_envs: int, batch_size: int, device: str, more: dict[str, Any], wanted: int
) -> None:
    config = TrainConfig(num_envs=num_envs, batch_size=batch_size, **more)
    assert plan.groups(config, torch.device(device)) == wanted


def test_groups_train_as_one_actor_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of each actor's environments, all of them different, put together in every batch."""
    monkeypatch.setattr("deltabeast.launch.training.local.engine.groups", lambda config, device: 2)
    arguments = (*FEEDFORWARD, "--overlap", "on", "--num-actors", "2", "--steps", "400", "--log-seconds", "0")
    with ExitStack() as stack:
        config = parse(["train", "--env", "training_envs:Match-v0", *arguments, "--run-dir", str(tmp_path)])
        plan.settle(config)
        engine = LocalEngine(config, stack)
        training = Run(config, engine, stack)
        assert [actor.num_envs for actor in engine.actors] == [2, 2, 2, 2]
        frames = torch.cat([actor._frame for actor in engine.actors])
        assert len(frames) == 8 and not torch.equal(frames[:2], frames[2:4])
        training.run()
    assert [int(row["step"]) for row in rows(tmp_path)] == list(range(20, 401, 20))


# Failures


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_an_actor_that_raises_ends_the_run_with_its_traceback(overlap: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    training = Training(run_dir, "--env", "training_envs:Raises-v0", *FEEDFORWARD, "--overlap", overlap)
    assert training.wait(30) == 1
    output = training.output()
    assert "Traceback" in output and 'raise KeyError("the emulator broke")' in output
    assert "error: actor 0 failed: KeyError('the emulator broke'); step 360 is saved in" in output
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
    with pytest.raises(RunError, match=r"actor \d failed.*; step \d+ is saved in") as raised:
        run(tmp_path, *arguments)
    assert isinstance(raised.value.__cause__, ActorError)
    assert isinstance(raised.value.__cause__.__cause__, KeyError)
    step = newest(tmp_path)[0]
    assert step == last_step(tmp_path) > 0
    monkeypatch.setattr(training_envs, "FAILS_AT", math.inf)
    run(tmp_path, *arguments)
    assert newest(tmp_path)[0] == 1000 and [int(r["step"]) for r in rows(tmp_path)] == list(
        range(20, 1001, 20)
    )


def test_a_failure_does_not_replace_a_checkpoint_of_the_same_step(tmp_path: Path) -> None:
    """That one knows where the environments were; after the failure nobody does."""
    arguments = ("--env", "training_envs:Raises-v0", *FEEDFORWARD, *EXACT, "--checkpoint-minutes", "0")
    arguments += ("--steps", "1000")
    with pytest.raises(RunError, match="step 360 is saved"):
        run(tmp_path, *arguments)
    assert newest(tmp_path)[2]["actors"] is not None


@pytest.mark.parametrize(
    ("kind", "named"), [("NanReward", "rewards"), ("NanObservation", "observations|behaviour logits")]
)
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


def test_a_run_is_the_same_with_updates_that_are_enqueued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns, with checkpoints and rows of the log in between, and a resume."""
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD, "--overlap", "off", "--log-seconds", "0",
                 "--milestone-steps", "100")  # fmt: skip
    for name in ("plain", "gpu"):
        if name == "gpu":
            as_on_a_gpu(monkeypatch)
        for steps in ("400", "800"):
            run(tmp_path / name, *arguments, "--steps", steps)
    assert_same_run(tmp_path / "plain", tmp_path / "gpu")


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


def test_a_damaged_latest_checkpoint_costs_one_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    arguments = (*CARTPOLE, *EXACT, "--checkpoint-minutes", "0")
    run(tmp_path / "whole", *arguments, "--steps", "160")
    # The same run to the same steps, damaged on the way: a signal after 100 steps.
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 5)
        with pytest.raises(Killed):
            run(tmp_path / "run", *arguments, "--steps", "160")
    path = find_checkpoints(tmp_path / "run")[-1].path / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1
    path.write_bytes(content)
    run(tmp_path / "run", *arguments, "--steps", "160")
    out = capsys.readouterr().out
    assert f"warning: {path} is damaged: its checksum differs" in out
    assert f"resuming {tmp_path / 'run'} at step 80" in out
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_latest(tmp_path / "run")

    for found in find_checkpoints(tmp_path / "run"):
        (found.path / "state.pt").write_bytes(b"")
    with pytest.raises(RunError, match=r"every checkpoint in .* is damaged; restore one, or start anew"):
        run(tmp_path / "run", *arguments, "--steps", "160")


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of the given size."""
    mounts = []

    def mount(options: str) -> Path:
        path = tmp_path / "disk"
        path.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("may not mount a file system here")
        mounts.append(path)
        return path

    yield mount
    for path in mounts:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of tensorboard's writer
def test_a_disk_that_fills_up_between_checkpoints(
    small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log notices first: the run stops in one line, and goes on when there is room again."""
    disk = small_disk("size=4m")
    arguments = (*CARTPOLE, *EXACT, "--steps", "400")

    def fill(learner: Learner) -> None:
        if learner.version == 3:
            with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    with monkeypatch.context() as patch:
        on_update(patch, fill)
        with pytest.raises(RunError, match="No space left on device") as raised:
            run(disk / "run", *arguments)
    assert "\n" not in str(raised.value) and str(disk / "run") in str(raised.value)
    assert load_latest(disk / "run") is not None
    (disk / "ballast").unlink()
    run(disk / "run", *arguments)
    assert [int(row["step"]) for row in rows(disk / "run")] == list(range(20, 401, 20))


def test_a_disk_too_small_for_the_checkpoints(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=1400k")
    with pytest.raises(
        RunError, match=r"cannot save .*: No space left on device; free space or fix"
    ) as raised:
        run(disk / "run", *CARTPOLE, "--checkpoint-minutes", "0", "--steps", "400")
    assert "\n" not in str(raised.value)
    found = load_latest(disk / "run")
    assert found is not None and found[2].step > 0


@pytest.mark.parametrize("size", ["4k", "12k", "100k"])
def test_a_disk_that_is_full_before_training(size: str, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk(f"size={size}")
    with pytest.raises((RunError, UsageError), match="No space left on device") as raised:
        run(disk / "run", *CARTPOLE)
    assert "\n" not in str(raised.value) and str(disk / "run") in str(raised.value)


def test_a_disk_that_may_not_be_written(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=1m,ro")
    with pytest.raises(UsageError, match=r"cannot write to .*: Read-only file system; give another"):
        run(disk / "run", *CARTPOLE)


# Actors in threads


def test_actors_in_threads_learn_with_a_bounded_lag(tmp_path: Path) -> None:
    arguments = ("--core", "feedforward", "--num-envs", "8", "--batch-size", "16", "--unroll-length", "10")
    arguments = ("--env", "training_envs:Match-v0", *arguments, "--num-actors", "2", "--overlap", "on")
    run(tmp_path, *arguments, "--steps", "8k", "--learning-rate", "0.002", "--log-seconds", "0")
    logged = rows(tmp_path)
    assert float(logged[-1]["game_return"]) > 8.0, "random play scores 5"
    lags = [float(row["policy_lag_max"]) for row in logged]
    assert 0 < max(lags) <= 4
    assert all(float(row["policy_lag"]) <= float(row["policy_lag_max"]) for row in logged)
    shares = [
        float(logged[-1][f"share_{part}"]) for part in ("emulation", "inference", "learning", "waiting")
    ]
    assert all(0 <= share <= 1 for share in shares)


def test_lockstep_has_no_lag(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "100", "--log-seconds", "0")
    assert all(float(row["policy_lag_max"]) == 0.0 for row in rows(tmp_path))
    assert all(float(row["log_rho_abs_max"]) < 1e-4 for row in rows(tmp_path))


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
    assert said[-1].startswith("stopped at 360 of 200,000,000 steps")


def listen(monkeypatch: pytest.MonkeyPatch, start: str, then: Callable[[], None]) -> list[str]:
    """What the panel says; `then` is called once when a message starts as given."""
    said: list[str] = []
    done = False

    def message(_panel: Panel, text: str) -> None:
        nonlocal done
        said.append(text)
        if text.startswith(start) and not done:
            done = True
            then()

    monkeypatch.setattr(Panel, "message", message)
    return said


def test_another_protocol_is_named_as_what_differs(tmp_path: Path) -> None:
    arguments = ("--game", "gopher", "--core", "feedforward", "--stem", "nature", *TINY)
    run(tmp_path / "run", *arguments, "--steps", "20")
    with pytest.raises(UsageError, match="with protocol paper-code, not ale-standard; give another"):
        run(tmp_path / "run", *arguments, "--steps", "40", "--protocol", "ale-standard")


@pytest.mark.parametrize(("core", "remembers"), [("lstm", True), ("feedforward", False)])
def test_a_truncated_lstm_does_not_go_on_as_a_whole_one(core: str, remembers: bool, tmp_path: Path) -> None:
    """An earlier version cut gradients under per_step whatever the core; only a memory makes a difference."""
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD, "--core", core)
    run(tmp_path / "run", *arguments, "--bptt", "per_step", "--steps", "20")
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    assert content["config"]["bptt"] == "per_step"
    run(tmp_path / "run", *arguments, "--steps", "40")  # full is the same without fast weights
    del content["format"]
    path.write_text(json.dumps(content))
    if remembers:
        with pytest.raises(UsageError, match=r"lstm whose gradients .* at every step.*another --run-dir"):
            run(tmp_path / "run", *arguments, "--bptt", "per_step", "--steps", "60")
    else:
        run(tmp_path / "run", *arguments, "--bptt", "per_step", "--steps", "60")
    assert find_checkpoints(tmp_path / "run")[-1].step == (40 if remembers else 60)


def test_a_core_keeps_its_run_under_its_older_spelling(tmp_path: Path) -> None:
    sizes = ("--core-options", "hidden_size", "8", "num_heads", "2", "ff_size", "8", "num_layers", "1")
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD, *sizes, "--core")
    run(tmp_path / "run", *arguments, "rdn-large", "--steps", "20")
    spec = find_checkpoints(tmp_path / "run")[-1].path / "agent.json"
    assert json.loads(spec.read_text())["core"] == "rdn_large"
    run(tmp_path / "run", *arguments, "rdn_large", "--steps", "40")
    assert find_checkpoints(tmp_path / "run")[-1].step == 40


def test_a_run_is_found_under_either_spelling_of_its_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new, old = Path("runs/pong/rdn_large/seed-1"), Path("runs/pong/rdn-large/seed-1")
    configs = [TrainConfig(game="pong", core=core) for core in ("rdn-large", "rdn_large")]
    assert [default_run_dir(config) for config in configs] == [new, new]
    old.mkdir(parents=True)
    assert [default_run_dir(config) for config in configs] == [old, old]
    names = ["rdn-large", "delta_net", "my-cores:My_Core", "my_cores:My-Core"]
    assert [directory.core_name(name) for name in names] == [core_name(name) for name in names]


def test_all_options_that_differ_are_named_and_the_preset_that_they_began_with(tmp_path: Path) -> None:
    arguments = ("--env", "CartPole-v1", *FEEDFORWARD, "--core", "delta_net", "--stem", "mlp", "--steps")
    run(tmp_path / "run", *arguments, "20", "--preset", "published", "--discount", "0.5")
    expected = (
        r"with --bptt per_step --discount 0.5 --no-rmsprop-corrected, not --bptt full --discount 0.99 "
        r"--rmsprop-corrected, begun with --preset published; give that"
    )
    with pytest.raises(UsageError, match=expected):
        run(tmp_path / "run", *arguments, "40")
    same = ("--bptt", "per_step", "--discount", "0.5", "--no-rmsprop-corrected")
    run(tmp_path / "run", *arguments, "40", *same)
    assert read_config(tmp_path / "run")["preset"] == "published"


def test_a_run_does_not_go_on_as_another_experiment(tmp_path: Path) -> None:
    arguments = ("--env", "training_envs:Match-v0", *FEEDFORWARD)
    run(tmp_path / "run", *arguments, "--steps", "200")
    for change in (("--discount", "0.5"), ("--learning-rate", "0.1"), ("--seed", "9")):
        with pytest.raises(UsageError, match=rf"{change[0]} .*, not {' '.join(change)}; .*another --run-dir"):
            run(tmp_path / "run", *arguments, "--steps", "400", *change)
    run(tmp_path / "run", *arguments, "--steps", "400", "--log-seconds", "1", "--num-envs", "2")
    assert find_checkpoints(tmp_path / "run")[-1].step >= 400
