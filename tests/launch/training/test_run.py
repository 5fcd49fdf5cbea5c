"""A run and its engine: it goes back to the last checkpoint where the engine has lost the newest weights."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from training_in_process import FEEDFORWARD
from training_process import last_step, newest, rows

from deltabeast.agents import Agent
from deltabeast.launch.errors import RunError
from deltabeast.launch.parsing import parse
from deltabeast.launch.runs.sinks import Sink
from deltabeast.launch.training import run as run_module
from deltabeast.launch.training.engine import ActorError, Update, WeightsLost
from deltabeast.launch.training.local.engine import LocalEngine
from deltabeast.launch.training.plan import resolve
from deltabeast.launch.training.run import Run

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


class Forgetful(LocalEngine):
    """Loses its weights once: in an update, or when a checkpoint asks for them."""

    loses: tuple[str, int] = ("update", 100)
    """where, and after how many agent steps"""
    hopeless = False
    lost = False

    def _lose(self, where: str) -> None:
        if not self.lost and (where, self.steps) == self.loses:
            self.lost = True
            raise WeightsLost("the weights are gone")

    def updates(self, hold: Callable[[], bool]) -> Iterator[Update]:
        for update in super().updates(hold):
            self._lose("update")
            yield update

    def snapshot(self, actors: bool) -> dict[str, Any]:
        self._lose("snapshot")
        return super().snapshot(actors)

    def restore(self, agent: Agent, state: Mapping[str, Any], lost: WeightsLost) -> float:
        self.agent.load_state_dict(agent.state_dict())
        self.learner.load_state_dict(state["learner"])
        self.weights.publish(self.agent, self.learner.version)
        if self.hopeless:
            raise ActorError(f"{lost} for good")
        return 0.5


def forgetful(
    run_dir: Path, stack: ExitStack, console: Console, track: str | None = None, **options: Any
) -> Run:
    given = ("--env", "training_envs:Match-v0", *FEEDFORWARD, "--steps", "200", "--milestone-steps", "40",
             "--log-seconds", "0", "--run-dir", str(run_dir))  # fmt: skip
    config = parse(["train", *given])
    resolve(config)
    config.track = track  # type: ignore[assignment]
    engine = Forgetful(config, stack)
    vars(engine).update(options)
    return Run(config, engine, stack, console)


@pytest.mark.parametrize(("loses", "back"), [(("update", 100), 80), (("snapshot", 200), 160)])
def test_a_run_goes_back_to_its_last_checkpoint(loses: tuple[str, int], back: int, tmp_path: Path) -> None:
    """Every step is in the log once, and scores are those of the steps that count."""
    said = io.StringIO()
    with ExitStack() as stack:
        forgetful(tmp_path, stack, Console(file=said, width=200), loses=loses).run()
    assert f"the weights are gone; resuming from step {back} in 0.5 s" in said.getvalue()
    assert [int(row["step"]) for row in rows(tmp_path)] == list(range(20, 201, 20))
    assert newest(tmp_path)[0] == 200
    assert rows(tmp_path)[-1]["episodes"] == "20", "of ten steps each: those of undone updates do not count"


def test_a_run_that_cannot_go_back_ends_at_its_last_checkpoint(tmp_path: Path) -> None:
    with ExitStack() as stack:
        training = forgetful(tmp_path, stack, Console(quiet=True), hopeless=True)
        with pytest.raises(RunError, match=r"the weights are gone for good; step 80 is saved in"):
            training.run()
    assert newest(tmp_path)[0] == last_step(tmp_path) == 80


@pytest.mark.parametrize("loses", [("update", 120), ("snapshot", 200)])
def test_a_run_that_is_asked_to_stop_does_not_go_back(
    loses: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends all of its processes has ended that one too: it says what is saved, and cuts no row."""
    lose = Forgetful._lose

    def stopped(self: Forgetful, where: str) -> None:
        if (where, self.steps) == loses:
            self.stop.set()
        lose(self, where)

    monkeypatch.setattr(Forgetful, "_lose", stopped)
    with ExitStack() as stack:
        training = forgetful(tmp_path, stack, Console(quiet=True), loses=loses)
        back = (loses[1] - 1) // 40 * 40
        with pytest.raises(RunError, match=rf"^the weights are gone; step {back} is saved in \S+$"):
            training.run()
    assert newest(tmp_path)[0] == back < last_step(tmp_path)


def test_a_tracked_run_goes_back_without_asking_its_service_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be down by then."""
    opened, steps = [], []

    class Service(Sink):
        def options(self, options: object, headline: object) -> None:
            pass

        def log(self, step: int, metrics: object, at: float) -> None:
            steps.append(step)

        def close(self) -> None:
            opened.append("closed")

    def opens(*_: Any) -> Sink:
        opened.append("opened")
        return Service()

    monkeypatch.setattr(run_module, "open_tracker", opens)
    with ExitStack() as stack:
        one = forgetful(tmp_path, stack, Console(file=io.StringIO()), track="wandb")
        one.run()
    assert opened == ["opened", "closed"] and steps == list(range(20, 201, 20)) and one.engine.lost
