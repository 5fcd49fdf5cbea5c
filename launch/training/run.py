"""What a run is, whichever engine feeds it: its files, its log, and the loop over updates."""

from __future__ import annotations

import os
import shlex
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ...agents import (
    Agent,
    AgentSpec,
    CheckpointError,
    Episodes,
    NonFiniteError,
    UntrustedCore,
    load_latest,
    save_checkpoint,
)
from ...agents.stopwatch import Stopwatch
from ...cores.registry import read_core_options
from ...envs import canonical_game
from ..config import TrainConfig
from ..errors import RunError, StoppedBySignal, UsageError
from ..processes.supervision import stop_signals, watch
from ..runs import published
from ..runs.consent import consent
from ..runs.directory import claim, default_run_dir, eval_command, read_config, write_config
from ..runs.log import RunLog
from ..units import parse_steps
from .local.sources import ActorError
from .panel import Panel
from .plan import (
    check,
    check_not_truncated,
    check_resume,
    check_same_agent,
    check_same_options,
    compiles,
    count_parameters,
    hyperparameters,
)
from .progress import Scores, Speed, Window
from .randomness import seed_everything


@dataclass(frozen=True)
class Update:
    """One update of the weights, whoever made it."""

    metrics: Mapping[str, float]
    episodes: Sequence[Episodes]


class Run(ABC):
    """One run: its files, its log, and the loop over the updates that an engine makes."""

    agent: Agent
    """with the newest weights that this process has"""
    device: torch.device
    """the learner's"""

    def __init__(self, config: TrainConfig) -> None:
        """Raises ValueError for options that are wrong."""
        self.config = config
        self.total_steps = parse_steps(config.steps)
        self.milestone_steps = parse_steps(config.milestone_steps)
        check(config)
        if config.game is not None:
            config.game = canonical_game(config.game)
            config.protocol = config.protocol or published.PROTOCOL
        config.core_options = read_core_options(config.core, config.core_options)
        self.run_dir = config.run_dir or default_run_dir(config)
        seed_everything(config.seed, config.deterministic)
        self.scores = Scores()
        self.stop = threading.Event()
        self.stopwatch = Stopwatch()
        """the learner's"""
        self.start_step = self.saved_step = 0

    @property
    @abstractmethod
    def steps(self) -> int:
        """Agent steps learned from."""

    @abstractmethod
    def working(self) -> AbstractContextManager[object]:
        """What runs beside the loop over updates ends when its context is left."""

    @abstractmethod
    def updates(self) -> Iterator[Update]:
        """Update without end, or until `stop` is set and nothing comes any more.

        Raises ActorError or NonFiniteError if it cannot go on.
        """

    @abstractmethod
    def at_boundary(self) -> bool:
        """Whether a checkpoint now would lose no part of an unroll that was handed over already."""

    @abstractmethod
    def snapshot(self, actors: bool) -> dict[str, Any]:
        """Bring `agent` up to date, and give what a checkpoint holds besides it and the scores.

        Without the actors' state after a failure, when it may be half-way. Raises ActorError if the weights
        are out of reach.
        """

    @abstractmethod
    def stages(self) -> str:
        """What everyone is doing, for messages about what hangs."""

    @abstractmethod
    def new_window(self) -> Window: ...

    def row(self) -> dict[str, float]:
        """What the engine adds to a row of the log."""
        return {}

    def find(self, spec: AgentSpec, stack: ExitStack) -> tuple[dict[str, Any] | None, list[str]]:
        """Claim the run directory and look for a run to go on with: `agent` is then its agent.

        Gives the state of its checkpoint, and what to say about damaged ones. Raises UsageError if it is
        another run than the one asked for.
        """
        check_resume(self.config, self.run_dir)
        stack.enter_context(claim(self.run_dir))
        with warnings.catch_warnings(record=True) as damage:
            warnings.simplefilter("always")
            try:
                found = load_latest(self.run_dir, trust_core=spec.core)
            except UntrustedCore as error:
                raise UsageError(
                    f"{self.run_dir} holds a run with core {error.core}, not {spec.core}; give another "
                    f"--run-dir, or --core {shlex.quote(error.core)} if you trust its code"
                ) from error
        notes = [f"warning: {warning.message}" for warning in damage]
        if found is None:
            return None, notes
        self.agent, state, _ = found
        check_same_agent(self.agent.spec, spec, self.run_dir)
        check_not_truncated(self.config, self.agent.core, self.run_dir)
        saved = read_config(self.run_dir)
        check_same_options(saved, self.config, self.agent.core, self.run_dir)
        self.config.preset = saved.get("preset", self.config.preset)
        self.scores.load_state_dict(state["scores"])
        return state, notes

    def begin(self, resumed: bool, notes: Sequence[str], stack: ExitStack, console: Console | None) -> None:
        """Open the files and the panel; agent and learner are what the run begins with."""
        self.start_step = self.saved_step = self.steps
        with _saying_what_cannot_be_written(self.run_dir):
            write_config(self.run_dir, self.config)
            if not resumed:
                self._save()
            self._open_log(self.start_step if resumed else None)
            stack.callback(self._close_log)
            self.log.hyperparameters(hyperparameters(self.config, self.agent))
        self.panel = stack.enter_context(Panel(self._title(), self.total_steps, self.start_step, console))
        for note in notes:
            self.panel.message(note)
        if resumed:
            self.panel.message(f"resuming {self.run_dir} at step {self.start_step}")
        if compiles(self.config, self.device) and self.steps < self.total_steps:
            self.panel.message("compiling: the first update takes a minute or more, if no cache has it")
        self.updated_at = time.monotonic()

    def _open_log(self, resume_step: int | None) -> None:
        self.log = RunLog(self.run_dir, resume_step)

    def _close_log(self) -> None:
        with suppress(OSError):  # every row was on disk already, or its failure has been told
            self.log.close()

    def _title(self) -> str:
        spec, config = self.agent.spec, self.config
        parameters = count_parameters(self.agent)
        protocol = f" · {spec.protocol}" if spec.protocol else ""
        precision = "bf16" if self.agent.autocast_dtype else "fp32"
        return (
            f"{spec.game or spec.env_id}{protocol} · {spec.core} · {spec.stem} · seed {config.seed} · "
            f"{parameters / 1e6:.2f}M parameters · {self.device.type} {precision}"
        )

    def run(self) -> None:
        """Update until the steps are done, a signal asks to stop, or something fails."""
        signals = stop_signals(self.stop, self.panel.console.is_terminal)
        watchdog = watch(self.stop, lambda: self.updated_at, self.stages, self.panel.message)
        with signals as asked, watchdog, self.working():
            try:
                self._updates()
            except (ActorError, NonFiniteError, OSError) as error:
                if isinstance(error, ActorError) and error.__cause__ is not None:
                    self.panel.message("".join(traceback.format_exception(error.__cause__)).rstrip())
                reason = _cannot_write(self.run_dir, error) if isinstance(error, OSError) else str(error)
                raise RunError(f"{reason}; {self._rescue()}") from error
        self.panel.message(self._farewell())
        if asked and self.steps < self.total_steps:
            raise StoppedBySignal(asked[0])

    def _updates(self) -> None:
        config = self.config
        if self.steps >= self.total_steps:
            return
        self.begin_measuring()
        for update in self.updates():
            self.updated_at = time.monotonic()
            for episodes in update.episodes:
                self.scores.add(episodes)
            self._speed.mark(self.steps)
            self.panel.foretell(self.steps)
            self._window.add(update.metrics)
            whole = self.at_boundary()
            done = self.steps >= self.total_steps or (self.stop.is_set() and whole)
            if self._window.age() >= config.log_seconds or done:
                self._write_row()
            if done or (self.checkpoint_is_due() and whole):
                self._save(milestone=self._passed_milestone())
            if done and (self.steps >= self.total_steps or self.stop.is_set()):  # a save may have gone back
                return
        if not self._window.is_empty():
            self._write_row()
        self._save()

    def _write_row(self) -> None:
        row = self._window.close() | self.scores.row() | self.row()
        row |= {"sps": self._speed.over(60.0), "sps_10s": self._speed.over(10.0)}
        self.log.write(self.steps, row)
        self.panel.update(self.steps, row)

    def roll_back(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, `steps` being its step: what came after it is lost."""
        self.scores.load_state_dict(state["scores"])
        self._close_log()
        self._open_log(self.steps)
        self.saved_step = self.steps
        self.begin_measuring()

    def begin_measuring(self) -> None:
        """Speed, means and shares of the time from now on."""
        self._speed = Speed(self.steps)
        self._window = self.new_window()
        self._saved_at = time.monotonic()
        self.panel.measure_from(self.steps)

    def checkpoint_is_due(self) -> bool:
        minutes = (time.monotonic() - self._saved_at) / 60
        return self._passed_milestone() or minutes >= self.config.checkpoint_minutes

    def _passed_milestone(self) -> bool:
        return self.steps // self.milestone_steps > self.saved_step // self.milestone_steps

    def _save(self, milestone: bool = False, actors: bool = True) -> None:
        self._write(self.snapshot(actors), milestone)

    def _write(self, state: Mapping[str, Any], milestone: bool = False) -> None:
        state = {**state, "scores": self.scores.state_dict(), "device": self.device.type}
        save_checkpoint(self.run_dir, self.steps, self.agent, state, milestone)
        self.saved_step, self._saved_at = self.steps, time.monotonic()

    def _rescue(self) -> str:
        """Save what is good after a failure, and say what came of it."""
        saved = f"step {self.saved_step} is saved in {self.run_dir}"
        if self.steps == self.saved_step:
            return saved
        try:
            state = self.snapshot(actors=False)
            for name, parameter in self.agent.named_parameters():
                if not parameter.isfinite().all():
                    return f"{name} is not finite; {saved}"
            self._write(state)
        except CheckpointError as error:
            return str(error)
        except ActorError as error:
            return f"{error}; {saved}"
        return f"step {self.saved_step} is saved in {self.run_dir}"

    def _farewell(self) -> str:
        verb = "stopped" if self.steps < self.total_steps else "finished"
        step = f"{self.steps:,} of {self.total_steps:,} steps"
        evaluate = eval_command(self.run_dir, *consent(self.config.core, self.config.env))
        then = "run the same command to go on" if verb == "stopped" else evaluate
        return f"{verb} at {step}, saved in {self.run_dir}; next: {then}"


def _cannot_write(run_dir: Path, error: OSError) -> str:
    return f"cannot write to {run_dir}: {os.strerror(error.errno) if error.errno else error}"


@contextmanager
def _saying_what_cannot_be_written(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(_cannot_write(run_dir, error)) from error
