"""Training in the process of the tests, watched and disturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tape
from training_process import assert_same_run

from deltabeast.agents import Learner, make_executor
from deltabeast.agents.cuda import graphs
from deltabeast.agents.cuda.enqueued import Enqueued
from deltabeast.launch.parsing import parse
from deltabeast.launch.training.command import train
from deltabeast.launch.training.panel import Panel

FEEDFORWARD = ("--core", "feedforward", "--num-envs", "4", "--batch-size", "4", "--unroll-length", "5",
               "--device", "cpu", "--precision", "fp32", "--num-workers", "1")  # fmt: skip
EXACT = ("--deterministic", "--log-seconds", "0")


class Killed(BaseException):
    """Ends training on the spot: nothing may catch it and save."""


def run(run_dir: Path, *arguments: str) -> None:
    train(parse(["train", *arguments, "--run-dir", str(run_dir)]))


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are enqueued, and captured on a tape that stands in for a CUDA graph."""
    monkeypatch.setattr(make_executor, "EagerExecutor", Enqueued)
    monkeypatch.setattr(graphs, "record", tape.record)


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


def assert_a_kill_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], at: int, *killed: str
) -> None:
    """Train in folder/one, and in folder/other with a kill at an update; `killed`: options until then."""
    run(folder / "one", *arguments)
    with monkeypatch.context() as patch:
        kill_at(patch, at)
        with pytest.raises(Killed):
            run(folder / "other", *arguments, *killed)
    run(folder / "other", *arguments)
    assert_same_run(folder / "one", folder / "other")


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
