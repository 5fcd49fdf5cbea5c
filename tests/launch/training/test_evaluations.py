"""Checkpoints evaluated while training goes on, and traces of updates."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_in_process import FEEDFORWARD, run
from training_process import rows

from deltabeast.agents.stopwatch import Tracing
from deltabeast.launch.cli import main
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.parsing import parse
from deltabeast.launch.processes.child import Child
from deltabeast.launch.training.evaluations import Evaluations, Scores, scores_of
from deltabeast.launch.training.profiling import NAME

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")
CARTPOLE = ("--env", "CartPole-v1", *FEEDFORWARD, "--log-seconds", "0")


def curve(run_dir: Path) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return sorted((event.step, event.value) for event in events.Scalars("eval/game_return"))


@pytest.mark.usefixtures("quick_children")
def test_checkpoints_are_kept_and_evaluated_as_eval_does_it(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "100", "--eval-every", "40")
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} >= {f"{40:012}", f"{80:012}"}
    found = curve(tmp_path)
    assert [step for step, _ in found] == [40, 80, 100]  # the last one, too
    assert len(rows(tmp_path)) == 5 and not any("eval" in name for name in rows(tmp_path)[0])
    shutil.move(tmp_path / "eval", tmp_path / "theirs")
    for step, score in found:
        main(["eval", str(tmp_path), "--checkpoint", str(step), "--episodes", "4", "--repeats", "5"])
        (ours,) = (tmp_path / "eval").glob(f"*-{step}-*.json")
        (theirs,) = (tmp_path / "theirs").glob(f"*-{step}-*.json")
        assert scores_of(ours) == scores_of(theirs)
        assert scores_of(ours)["eval/game_return"] == pytest.approx(score, rel=1e-6)


@pytest.mark.long
def test_what_a_stopped_run_has_not_evaluated_is_evaluated_when_it_goes_on(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "100", "--eval-every", "40")
    before = {path.name for path in (tmp_path / "eval").iterdir()}
    (gone,) = (tmp_path / "eval").glob("*-40-*.json")
    gone.unlink()
    run(tmp_path, *CARTPOLE, "--steps", "140", "--eval-every", "40")
    after = {path.name for path in (tmp_path / "eval").iterdir()}
    assert sorted(int(name.split("-")[1]) for name in after - before) == [40, 120, 140]
    assert [step for step, _ in curve(tmp_path)] == [40, 40, 80, 100, 120, 140]


def watched(run_dir: Path, step: int, config: TrainConfig) -> tuple[Evaluations, list[Scores], list[str]]:
    logged: list[Scores] = []
    said: list[str] = []
    evaluations = Evaluations(run_dir, config, (), lambda _, scores: logged.append(scores), said.append)
    evaluations.add(step)
    evaluations.poll()
    return evaluations, logged, said


@pytest.mark.usefixtures("quick_children")
def test_an_evaluation_that_fails_is_named_and_harms_nothing(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "20")
    config = parse(["train", *CARTPOLE])
    weights = tmp_path / "checkpoints" / f"{20:012}" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    evaluations, logged, said = watched(tmp_path, 20, config)
    evaluations.finish(lambda: False)
    assert not logged and len(said) == 2  # that it waits, then this
    assert said[1].startswith("step 20 has no evaluation: ") and "weights.safetensors" in said[1]


def test_an_evaluation_that_is_killed_is_named(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "20")
    evaluations, logged, said = watched(tmp_path, 20, parse(["train", *CARTPOLE]))
    child = evaluations._child
    assert child is not None
    os.kill(child._process.pid or 0, 9)
    evaluations.finish(lambda: False)
    assert not logged and "evaluation of step 20 (process" in said[1] and "killed by signal 9" in said[1]


@pytest.mark.usefixtures("quick_children")
def test_evaluations_that_cannot_begin_or_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one is tried all the same."""
    run(tmp_path, *CARTPOLE, "--steps", "20")
    begin, reads = Child.__init__, [OSError(errno.EAGAIN, "no process to be had"), KeyError("results")]

    def fails(child: Child, *arguments: object) -> None:
        if isinstance(reads[0], OSError):
            raise reads.pop(0)
        begin(child, *arguments)  # type: ignore[arg-type]

    def unreadable(_: Path) -> Scores:
        raise reads[0]

    monkeypatch.setattr(Child, "__init__", fails)
    monkeypatch.setattr("deltabeast.launch.training.evaluations.scores_of", unreadable)
    evaluations, logged, said = watched(tmp_path, 20, parse(["train", *CARTPOLE]))
    assert said == ["step 20 has no evaluation: [Errno 11] no process to be had"] and evaluations.left == 0
    evaluations.add(20)
    evaluations.finish(lambda: False)
    assert not logged and said[-1] == "step 20 has no evaluation: 'results'" and evaluations.left == 0


def test_a_run_that_is_asked_to_stop_does_not_wait(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "20")
    evaluations, logged, said = watched(tmp_path, 20, parse(["train", *CARTPOLE]))
    child = evaluations._child
    assert child is not None
    pid = child._process.pid or 0
    os.kill(pid, signal.SIGINT)  # as Ctrl-C does with a whole group
    end = time.monotonic() + 30
    while os.getpriority(os.PRIO_PROCESS, pid) < 19:  # it gives way to training
        assert time.monotonic() < end
        time.sleep(0.05)
    assert child._process.is_alive()
    begun = time.monotonic()
    evaluations.finish(lambda: True)
    assert evaluations.left == 1 and not said  # of waiting
    evaluations.close()
    assert not logged and time.monotonic() - begun < 5
    assert not capfd.readouterr().err


def test_a_trace_shows_the_stages_of_its_updates(tmp_path: Path) -> None:
    run(tmp_path / "run", *CARTPOLE, "--steps", "200", "--profile", "4")
    events = json.loads((tmp_path / "run" / NAME).read_text())["traceEvents"]
    stages = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    # two more of each unroll: before the first step, and after the last one to know the next value
    assert stages["emulation"] == stages["inference"] - 4 * 2 == 4 * 5
    assert stages["learning"] >= 4
    assert any("mm" in str(event.get("name")) for event in events)  # what the stages are made of
    assert Tracing.mark is None
    run(tmp_path / "short", *CARTPOLE, "--steps", "100", "--profile", "40")  # ends before
    assert (tmp_path / "short" / NAME).exists() and Tracing.mark is None


def test_a_trace_that_cannot_be_written_is_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(self: object, path: str) -> None:
        raise RuntimeError("it cannot be written")

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", fails)
    run(tmp_path, *CARTPOLE, "--steps", "200", "--profile", "4")
    assert len(rows(tmp_path)) == 10 and Tracing.mark is None
    line = "--profile: it cannot be written; the run goes on without it\n"
    assert capsys.readouterr().out.count(line) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--env CartPole-v1 --eval-every some", "--eval-every: 'some' is not a number of agent steps"),
        (
            "--game pong --video",
            "--video records games of --game at each --eval-every; omit it, or give both",
        ),
        ("--env CartPole-v1 --eval-every 1M --video", "--video records games of --game"),
        ("--game pong --profile -1", "--profile -1; it must not be negative"),
        ("--game pong --engine ray --profile 3", "--profile"),
    ],
)
def test_wrong_options_are_one_line(
    options: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, "train", *options.split(), "--run-dir", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("quick_children")
def test_a_damaged_checkpoint_is_no_end(tmp_path: Path) -> None:
    run(tmp_path, *CARTPOLE, "--steps", "60", "--eval-every", "40")
    (tmp_path / "checkpoints" / f"{40:012}" / "manifest.json").write_text("{")
    run(tmp_path, *CARTPOLE, "--steps", "100", "--eval-every", "40")
    assert [step for step, _ in curve(tmp_path)] == [40, 60, 80, 100]


@pytest.mark.usefixtures("quick_children")
def test_a_run_of_a_sweep_evaluates_outside_the_main_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, tmp_path, *CARTPOLE, "--steps", "40", "--eval-every", "40").result()
    assert [step for step, _ in curve(tmp_path)] == [40]


@pytest.mark.usefixtures("quick_children")
def test_nothing_hangs_while_evaluations_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No update for a while is as it should be."""
    watched: list[bool] = []
    finish = Evaluations.finish

    def finishes(self: Evaluations, stopped: Callable[[], bool]) -> None:
        watched.append(any("watchdog" in thread.name for thread in threading.enumerate()))
        finish(self, stopped)

    monkeypatch.setattr(Evaluations, "finish", finishes)
    run(tmp_path, *CARTPOLE, "--steps", "40", "--eval-every", "40")
    assert watched == [False]
