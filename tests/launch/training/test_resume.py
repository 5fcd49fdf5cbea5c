"""Runs that are killed or stopped and resumed end like uninterrupted ones; or are refused."""

from __future__ import annotations

import os
import random
import signal
import warnings
from pathlib import Path

import pytest
from training_in_process import (
    EXACT,
    FEEDFORWARD,
    Killed,
    assert_a_kill_changes_nothing,
    kill_at,
    on_update,
    run,
)
from training_process import (
    CARTPOLE,
    assert_same_run,
    last_step,
    metrics,
    newest,
    rows,
)

from deltabeast.agents import find_checkpoints, load_latest
from deltabeast.launch.errors import RunError, StoppedBySignal, UsageError
from deltabeast.launch.training.panel import Panel

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


LAYOUTS = {
    "one unroll an update": (4, 4, 1),
    "unrolls cut into four": (8, 2, 1),
    "two unrolls joined": (2, 4, 1),
    "actors in turns": (4, 4, 3),
    "actors joined out of step": (2, 4, 3),
    "cut unrolls in turns": (4, 2, 2),
}


@pytest.mark.parametrize(
    "layout",
    [
        "unrolls cut into four",
        "actors joined out of step",
        "cut unrolls in turns",
        pytest.param("one unroll an update", marks=pytest.mark.long),  # as every core in test_every_core.py
        pytest.param("two unrolls joined", marks=pytest.mark.long),
        pytest.param("actors in turns", marks=pytest.mark.long),
    ],
)
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


def test_a_run_goes_on_with_normalised_values_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not without them."""
    arguments = (*CARTPOLE, *EXACT, "--steps", "160", "--checkpoint-minutes", "0")
    assert_a_kill_changes_nothing(tmp_path, monkeypatch, (*arguments, "--normalise-values"), 5)
    mean, square = newest(tmp_path / "other")[1]["value_normaliser.averages"].tolist()
    assert mean and square not in (0, 1), "it has learned from targets"
    with pytest.raises(UsageError, match="with normalised values True, not False"):
        run(tmp_path / "other", *arguments)


def test_a_core_that_draws_random_numbers_goes_on_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    arguments = ("--env", "CartPole-v1", *FEEDFORWARD, "--core", "training_envs:NoisyCore", *EXACT)
    arguments += ("--steps", "200", "--checkpoint-minutes", "0")
    assert_a_kill_changes_nothing(tmp_path, monkeypatch, arguments, 5)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_run_that_learns_several_times_is_saved_between_batches(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes of two minibatches, the end comes after the first minibatch of a later batch."""
    arguments = [*CARTPOLE, *EXACT, "--steps", "120", "--passes", "2", "--minibatch-size", "2"]
    arguments += ["--optimizer", "adam", "--clip-ratio", "0.1", "--checkpoint-minutes", "0"]
    if how == "killed":
        assert_a_kill_changes_nothing(tmp_path, monkeypatch, arguments, 13)
    else:
        run(tmp_path / "one", *arguments)
        with monkeypatch.context() as patch:
            on_update(patch, lambda learner: learner.version == 13 and os.kill(os.getpid(), signal.SIGTERM))
            with pytest.raises(StoppedBySignal):
                run(tmp_path / "other", *arguments)
        step, _, state = newest(tmp_path / "other")
        assert (step, state["learner"]["version"]) == (80, 16)
        run(tmp_path / "other", *arguments)
        assert_same_run(tmp_path / "one", tmp_path / "other")
    assert newest(tmp_path / "other")[2]["learner"]["version"] == 24
    saved = [each.step for each in find_checkpoints(tmp_path / "other")]
    assert all(step % 20 == 0 for step in saved)


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
    logged = ("--log-seconds", "0", "--checkpoint-minutes", "0")
    arguments = (*CARTPOLE, *logged, "--steps", "800", "--learning-rate", "6e-4")
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


def test_a_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "40")
    before, checkpoint = rows(tmp_path), newest(tmp_path)[0]
    config = (tmp_path / "config.json").read_bytes()
    run(tmp_path, *CARTPOLE, "--steps", "40", "--log-seconds", "3")  # an option that it was not trained with
    assert (tmp_path / "config.json").read_bytes() == config
    assert rows(tmp_path) == before and newest(tmp_path)[0] == checkpoint
    said = capsys.readouterr().out
    assert said.count("finished at 40 of 40 steps") == 2
    assert said.count("nothing left to train, raise --steps for more") == 1
    assert "where it was" not in said
    run(tmp_path, *CARTPOLE, "--steps", "80", "--resume", "must")
    assert "--steps 80, where it was 40: the learning rate falls" in capsys.readouterr().out
    assert newest(tmp_path)[0] == 80 and (tmp_path / "config.json").read_bytes() != config
    run(tmp_path, *CARTPOLE, "--steps", "60")
    assert "where it was" not in capsys.readouterr().out  # nothing is left to train


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


def test_deterministic_cannot_take_over_another_run(tmp_path: Path) -> None:
    run(tmp_path / "free", *CARTPOLE, "--steps", "20")
    with pytest.raises(
        UsageError, match="under --deterministic: the run was trained without --deterministic"
    ):
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
