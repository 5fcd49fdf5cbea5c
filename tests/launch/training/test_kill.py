"""Training that is killed, at random moments, and resumed: with real signals to real processes."""

from __future__ import annotations

import random
import signal
import time
import warnings
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
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

from deltabeast.agents import find_checkpoints, load_latest
from deltabeast.launch.processes.supervision import SAME_REQUEST
from deltabeast.launch.runs.presets import PRESETS

STEPS, MORE_STEPS = 1200, 2400
EXACT = ("--deterministic", "--log-seconds", "0", "--milestone-steps", "500")
OFTEN = ("--checkpoint-minutes", "0.005")


def train_without_a_kill(run_dir: Path, steps: int) -> Path:
    training = Training(run_dir, *CARTPOLE, *EXACT, "--steps", str(steps))
    assert training.wait() == 0, training.output()
    return run_dir


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_without_a_kill(tmp_path_factory.mktemp("runs") / "uninterrupted", STEPS)


def test_a_signal_saves_and_ends_the_process_and_the_run_goes_on(
    uninterrupted: Path, tmp_path: Path, seed: int
) -> None:
    run_dir = tmp_path / "run"
    arguments = (*CARTPOLE, *EXACT, "--steps", str(STEPS))
    for number in (signal.SIGTERM, signal.SIGINT):
        training = Training(run_dir, *arguments)
        goal = last_step(run_dir) + random.randrange(40, 120)
        assert training.wait_for(lambda goal=goal: last_step(run_dir) >= goal), training.output()
        training.send(number)
        assert training.wait() == -number, training.output()  # died of it: a shell loop stops too
        assert "stopped at" in training.output() and "run the same command" in training.output()
        step = newest(run_dir)[0]
        assert step == last_step(run_dir) < STEPS, "the last update must be in the log and in the checkpoint"
    training = Training(run_dir, *arguments)
    assert training.wait() == 0, training.output()
    assert f"resuming {run_dir} at step {step}" in training.output()
    assert_same_run(uninterrupted, run_dir)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGHUP,
        *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGUSR1, signal.SIGUSR2)),
        signal.SIGXCPU,
    ],
)
def test_what_comes_before_a_kill_saves_however_often_it_comes(
    number: signal.Signals, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    training = Training(run_dir, *CARTPOLE, *EXACT, "--steps", "1M")
    assert training.wait_for(lambda: last_step(run_dir) >= 100)
    for _ in range(3):
        training.send(number)
        time.sleep(0.01)
    assert training.wait() == -number, training.output()
    assert newest(run_dir)[0] == last_step(run_dir) >= 100


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_later_signal_exits_at_once(tmp_path: Path, number: signal.Signals) -> None:
    run_dir = tmp_path / "run"
    # One update takes for ever: the environments stop answering.
    training = Training(
        run_dir, "--env", "training_envs:Stalls-v0", *TINY, "--steps", "1M", "--log-seconds", "0"
    )
    assert training.wait_for(lambda: last_step(run_dir) >= 300)
    time.sleep(0.5)
    training.send(number)
    time.sleep(0.1)
    training.send(number)  # as `timeout` does, a moment later: the same request
    assert training.wait_for(lambda: "again to stop immediately" in training.output())
    time.sleep(SAME_REQUEST)
    sent = time.monotonic()
    training.send(number)
    assert training.wait() == 128 + number
    assert time.monotonic() - sent < 2.0


@pytest.mark.long
def test_ten_kills_lose_at_most_one_interval_each(tmp_path: Path, seed: int) -> None:
    uninterrupted = train_without_a_kill(tmp_path / "uninterrupted", MORE_STEPS)
    run_dir = tmp_path / "run"
    batch = 20
    saved = 0
    for kill in range(11):
        # Checkpoints after every update make the kill fall into one; the others fall between two.
        minutes = random.choice(["0", "0.002", "0.005"])
        arguments = (*CARTPOLE, *EXACT, "--steps", str(MORE_STEPS), "--checkpoint-minutes", minutes)
        training = Training(run_dir, *arguments)
        if kill == 10:
            assert training.wait() == 0, training.output()
            break
        began = not saved and kill not in (3, 7)
        if kill in (3, 7):  # while it starts: what an earlier one logged may still be there
            time.sleep(random.random())
        else:
            goal = saved + random.randrange(batch, MORE_STEPS // 8)
            began = training.wait_for(
                lambda goal=goal, t=training: _went_on(t) and last_step(run_dir) >= goal
            )
            time.sleep(random.random() * 0.05)
        training.send(signal.SIGKILL)
        training.wait()
        context = f"kill {kill} after step {saved}, --checkpoint-minutes {minutes}"
        if saved and began:
            assert f"resuming {run_dir} at step {saved}" in training.output(), context
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a half-written checkpoint would be skipped with a warning
            found = load_latest(run_dir)
        assert found is not None, context
        step, state = found[2].step, found[1]
        assert step >= saved, context
        assert state["learner"]["steps"] == step == batch * state["learner"]["version"], context
        if minutes == "0" and began:
            assert last_step(run_dir) - step <= batch, f"{context}: more than one interval lost"
        logged = {int(row["step"]): row for row in rows(run_dir)}
        if step in logged:
            best = logged[step]["best_game_return"]
            assert (f"{state['scores']['best']:.8g}" if state["scores"]["best"] is not None else "") == best
        saved = step
    assert_same_run(uninterrupted, run_dir)
    assert [int(row["step"]) for row in rows(run_dir)] == list(range(batch, MORE_STEPS + 1, batch))
    rate = PRESETS["gymnasium"]["learning_rate"]
    for row in rows(run_dir):  # the schedule of the learning rate follows the steps
        updates = int(row["step"]) // batch
        corrected = rate * (1 - 0.99**updates) ** 0.5  # RMSProp's start
        annealed = corrected * (1 - (updates - 1) * batch / MORE_STEPS)
        assert float(row["learning_rate"]) == pytest.approx(annealed, rel=1e-6)
    assert not list((run_dir / "checkpoints").glob(".*")), "a killed save left something behind"
    events = EventAccumulator(str(run_dir)).Reload()
    for tag in ("loss/total", "score/episodes", "learner/learning_rate"):
        assert [event.step for event in events.Scalars(tag)] == list(range(batch, MORE_STEPS + 1, batch)), tag
    written = [float(row["total_loss"]) for row in rows(run_dir)]
    assert [event.value for event in events.Scalars("loss/total")] == pytest.approx(written, rel=1e-5)
    kept = [c.step for c in find_checkpoints(run_dir)]
    assert {500, 1000, 1500} <= set(kept), "milestones"


def _went_on(training: Training) -> bool:
    """The log of an earlier process has been cut to the checkpoint."""
    return "resuming" in training.output() or "step" in training.output()


def test_pong_killed_and_resumed_is_the_same_run(tmp_path: Path, seed: int) -> None:
    arguments = (
        "--game",
        "pong",
        "--stem",
        "nature",
        *TINY,
        *EXACT,
        "--steps",
        "480",
        "--unroll-length",
        "10",
    )
    one, other = tmp_path / "uninterrupted", tmp_path / "killed"
    whole = Training(one, *arguments)
    assert whole.wait() == 0, whole.output()
    killed = Training(other, *arguments, *OFTEN)
    goal = random.randrange(80, 400)
    assert killed.wait_for(lambda: last_step(other) >= goal)
    killed.send(signal.SIGKILL)
    killed.wait()
    training = Training(other, *arguments)
    assert training.wait() == 0, training.output()
    assert_same_run(one, other)


def test_another_seed_gives_another_agent(uninterrupted: Path, tmp_path: Path) -> None:
    training = Training(tmp_path / "run", *CARTPOLE, *EXACT, "--steps", "100", "--seed", "2")
    assert training.wait() == 0, training.output()
    assert metrics(tmp_path / "run")[:3] != metrics(uninterrupted)[:3]
