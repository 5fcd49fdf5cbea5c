"""A training run: its files, its log, and the loop over the updates that an engine makes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rich.console import Console

from ...agents import Agent, AgentSpec, CheckpointError, NonFiniteError, files, load_latest, save_checkpoint
from ...agents.checkpoint import set_aside_newer
from ...agents.shapes import count_numbers
from ..config import TrainConfig
from ..errors import RunError, StoppedBySignal, UsageError, trace_of, writing
from ..processes.supervision import slow, stop_signals, watch
from ..runs.consent import consent
from ..runs.directory import claim, default_run_dir, eval_command, read_words, write_config
from ..runs.log import RunLog
from ..runs.mine import remember
from ..runs.tracking import open_tracker
from ..units import format_score, parse_steps
from .advice import Advice
from .engine import (
    ActorError,
    ActorsStarted,
    CannotRepeat,
    CannotRestore,
    Engine,
    Update,
    WeightsLost,
    restoring,
)
from .evaluations import Evaluations
from .panel import Panel, TrainingShown
from .plan import compiles, hyperparameters
from .profiling import Trace
from .progress import Scores, Speed
from .resume import check_resume, find_run


class Run:
    """One run, begun or resumed. `run` trains; `stack` closes what is opened here."""

    def __init__(
        self, config: TrainConfig, engine: Engine, stack: ExitStack, console: Console | None = None
    ) -> None:
        """Claim the run directory, go on from its newest checkpoint or write a first one, and open the log.

        Raises UsageError if the directory holds another run, RunError if it cannot be written.
        """
        self.config, self.engine = config, engine
        self.stop = engine.stop
        self.total_steps = parse_steps(config.steps)
        self.kept_every = [
            parse_steps(every) for every in (config.milestone_steps, config.eval_every) if every
        ]
        """steps between checkpoints that are kept for good"""
        self.run_dir = config.run_dir or default_run_dir(config)
        self.scores = Scores()
        self._noted: set[str] = set()
        self.advice = Advice(engine.agent.spec.num_actions, config.max_grad_norm, config.normalise_advantages)
        check_resume(config, self.run_dir)
        self._claim = stack.enter_context(claim(self.run_dir))
        agent, state, damage = find_run(config, self.run_dir, engine.agent.spec)
        notes = self._restore(agent, state)
        self._open(state is not None, [*engine.notes, *damage, *notes], stack, console)

    def _restore(self, agent: Agent | None, state: Mapping[str, Any] | None) -> list[str]:
        """Go on from a checkpoint, or begin; return notes. Raises UsageError if it does not fit."""
        try:
            if state is not None:
                self.engine.fused_record = read_words(self.run_dir, "auto").get("fused")
                with restoring("scores"):
                    self.scores.load_state_dict(state["scores"])
            with slow("the environments' first reset"):
                return self.engine.start(agent or self.engine.agent, state, self._say)
        except CannotRestore as error:
            raise UsageError(
                f"cannot resume {self.run_dir}: {error}; it was modified, or another version wrote "
                "it: use that one, or give another --run-dir"
            ) from error
        except CannotRepeat as error:
            raise UsageError(
                f"cannot resume {self.run_dir} under --deterministic: {error}; "
                "resume without --deterministic, and episodes begin anew"
            ) from error

    def _open(self, resumed: bool, notes: list[str], stack: ExitStack, console: Console | None) -> None:
        config, engine = self.config, self.engine
        start = self.began_at = self.saved_step = engine.steps
        shown = TrainingShown(config.game is not None, config.passes * (1 + config.replay_ratio))
        title = _title(config, engine)
        self.panel = stack.enter_context(Panel(title, self.total_steps, start, console, shown=shown))
        with writing(self.run_dir):
            self._tracker = None
            if config.track:
                self._tracker = open_tracker(config.track, self.run_dir, resumed, self._say)
                stack.callback(self._tracker.close)
            self.log = self._open_log(start if resumed else None)
            stack.callback(self._close_log)
            if start < self.total_steps:  # else a finished run keeps the config it was trained with
                resolved = {**resolved_by(engine.agent.spec), **engine.resolved}
                auto = {name: value for name, value in resolved.items() if getattr(config, name) == "auto"}
                write_config(self.run_dir, config, say=self._say, auto=auto, uses=engine.uses)
                remember(self.run_dir, config, self._say)
                self.log.hyperparameters(hyperparameters(config, engine.agent))
            if not resumed:
                self._save()
        self.evaluations = self.trace = None
        if config.eval_every:
            self.evaluations = Evaluations(
                self.run_dir, config, engine.pinned_cpus, self._log_evaluation, self._say
            )
            stack.callback(self.evaluations.close)
        if config.profile:
            self.trace = Trace(config.profile, self.run_dir, engine.device, self._say)
        for note in notes:
            self._say(note)
        if resumed:
            self._say(f"resuming {self.run_dir} at step {start}")
        if compiles(config, engine.device) and start < self.total_steps:
            self._say("compiling: the first update takes a minute or more, if no cache has it")
        self.updated_at = time.monotonic()

    def _open_log(self, resume_step: int | None) -> RunLog:
        return RunLog(self.run_dir, resume_step, tracker=self._tracker, say=self._say)

    def _unevaluated(self) -> int:
        return self.evaluations.left if self.evaluations else 0

    def _log_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        self.log.write_evaluation(step, scores)
        names = {name: name.removeprefix("eval/").replace("_", " ") for name in scores}
        shown = ", ".join(f"{names[name]} {format_score(value)}" for name, value in scores.items())
        self._say(f"evaluated at step {step:,}: {shown}")

    def run(self) -> None:
        """Train until the steps are done, a signal asks to stop, or something fails.

        Raises RunError, with a checkpoint saved where that is possible, or StoppedBySignal.
        """
        engine = self.engine
        signals = stop_signals(self.stop, self.panel.console.is_terminal)
        watchdog = watch(self.stop, lambda: self.updated_at, self._stages, self._say)
        with signals as asked:
            with watchdog, engine.acting(), self._rescued():
                self._train()
                if self.trace:
                    self.trace.close()
            if self.evaluations:
                with self._rescued():
                    self.evaluations.finish(self.stop.is_set)
        self._say(self._summary())
        if asked and (engine.steps < self.total_steps or self._unevaluated()):
            raise StoppedBySignal(asked[0])

    def _stages(self) -> str:
        spec = self.engine.agent.spec
        return f"{spec.game or spec.env_id}; {self.engine.stages()}"

    @contextmanager
    def _rescued(self) -> Iterator[None]:
        """Save what is good if something fails within. Raises RunError."""
        try:
            yield
        except (ActorError, NonFiniteError, OSError) as error:
            if isinstance(error, ActorError) and error.__cause__:
                for line in trace_of(error.__cause__).splitlines():
                    self._say(line)
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"cannot write to {self.run_dir}: {files.why(error)}"
            raise RunError(f"{reason}; {self._rescue(error)}") from error

    def _train(self) -> None:
        """Loop over updates: log, save, and go back to the last checkpoint where the weights are lost."""
        while self.engine.steps < self.total_steps:
            try:
                self._reset_meters()
                for _ in self._updates():
                    done = self._is_done()
                    if done or self._row_is_due():
                        self._write_row()
                    if done or (self._save_is_due() and self.engine.at_boundary()):
                        self._save(milestone=self._passed_milestone())
                    if done:
                        return
                if not self._window.is_empty():
                    self._write_row()
                self._save()
                return
            except WeightsLost as lost:
                if self.stop.is_set():  # whoever stopped the run may have ended its other processes
                    raise
                self._go_back(lost)

    def _updates(self) -> Iterator[Update]:
        for event in self.engine.updates(self._should_pause):
            if isinstance(event, ActorsStarted):
                self._reset_meters()
                continue
            self.updated_at = time.monotonic()
            self._add_scores(event)
            self._speed.mark(self.engine.steps)
            self.panel.print_eta(self.engine.steps)
            for metrics in event.metrics:
                self._window.add(metrics)
            if self.trace:
                self.trace.mark()
            if self.evaluations:
                self.evaluations.poll()
            yield event

    def _add_scores(self, update: Update) -> None:
        for episodes in update.episodes:
            self.scores.add(episodes)
            for note in episodes.notes:
                self._say_once(note)

    def _is_done(self) -> bool:
        stops = self.stop.is_set() and self.engine.at_boundary()
        return stops or self.engine.steps >= self.total_steps

    def _reset_meters(self) -> None:
        """Measure speed, means and shares of the time from now on."""
        self._speed = Speed(self.engine.steps)
        self._window = self.engine.new_window()
        self._saved_at = time.monotonic()
        self._logged_steps = self.engine.steps

    def _check_claim(self) -> None:
        """Say if the run directory is no longer the one it was. Raises RunError if it is another run's."""
        try:
            if self._claim.renew():
                self._say(f"{self.run_dir} or its .lock was removed or moved; a new one takes its place")
        except UsageError as error:
            raise RunError(f"{error}; step {self.saved_step} was saved before") from error

    def _row_is_due(self) -> bool:
        """A row is told by its steps: where a batch is learned from several times, they stand still."""
        advanced = self.engine.steps > self._logged_steps
        return advanced and self._window.age() >= self.config.log_seconds

    def _write_row(self) -> None:
        self._check_claim()
        self._logged_steps = self.engine.steps
        row = self._window.close() | self.scores.row() | self.engine.row()
        row |= {"sps": self._speed.over(60.0), "sps_10s": self._speed.over(10.0)}
        self.log.write(self.engine.steps, row)
        self.panel.update(self.engine.steps, row)
        for line in self.advice.of(row, self.scores.first):
            self._say(line)

    def _should_pause(self) -> bool:
        """Return whether the engine must wait: a checkpoint is due, or training is done."""
        return self.engine.steps >= self.total_steps or self._save_is_due()

    def _save_is_due(self) -> bool:
        minutes = (time.monotonic() - self._saved_at) / 60
        return self._passed_milestone() or minutes >= self.config.checkpoint_minutes

    def _passed_milestone(self) -> bool:
        last = self.evaluations is not None and self.engine.steps >= self.total_steps > self.saved_step
        return last or any(self.engine.steps // n > self.saved_step // n for n in self.kept_every)

    def _save(self, milestone: bool = False) -> None:
        self._write(self.engine.snapshot(actors=True), milestone)
        if milestone and self.evaluations:
            self.evaluations.add(self.saved_step)

    def _write(self, state: Mapping[str, Any], milestone: bool = False) -> None:
        self._check_claim()
        engine = self.engine
        state = {**state, "scores": self.scores.state_dict(), "device": engine.device.type}
        save_checkpoint(self.run_dir, engine.steps, engine.agent, state, milestone)
        self.saved_step, self._saved_at = engine.steps, time.monotonic()

    def _go_back(self, lost: WeightsLost) -> None:
        """Go back to the last checkpoint, and cut the log there. Raises ActorError if the run must end."""
        found = load_latest(self.run_dir, trust_core=self.config.core)
        assert found is not None, "a run begins with a checkpoint"
        agent, state, checkpoint = found
        set_aside_newer(self.run_dir, checkpoint.step)
        self.scores.load_state_dict(state["scores"])
        self._close_log()
        self.log = self._open_log(checkpoint.step)
        self.saved_step = checkpoint.step
        delay = self.engine.restore(agent, state, lost)
        self._say(f"{lost}; resuming from step {checkpoint.step} in {delay:g} s")

    def _rescue(self, failure: Exception) -> str:
        """Save what is good after a failure; return what came of it."""
        saved = f"step {self.saved_step} is saved in {self.run_dir}"
        if self.engine.steps == self.saved_step or isinstance(failure, WeightsLost):
            return saved
        try:
            for update in self.engine.finish():
                self._add_scores(update)
            state = self.engine.snapshot(actors=False)
            for name, parameter in self.engine.agent.named_parameters():
                if not parameter.isfinite().all():
                    return f"{name} is not finite; {saved}"
            self._write(state)
        except CheckpointError as error:
            return str(error)
        except ActorError as error:
            return f"{error}; {saved}"
        return f"step {self.saved_step} is saved in {self.run_dir}"

    def _summary(self) -> str:
        steps = self.engine.steps
        verb, then = "stopped", "run the same command to go on"
        if self.began_at >= self.total_steps:
            verb = "nothing left to train, raise --steps for more: finished"
        elif steps >= self.total_steps:
            verb = "finished"
        if steps >= self.total_steps:
            if self._unevaluated():
                then = f"run the same command for the {self._unevaluated()} evaluations that are left"
            else:
                then = eval_command(self.run_dir, *consent(self.config.core, self.config.env))
        return f"{verb} at {steps:,} of {self.total_steps:,} steps, saved in {self.run_dir}; next: {then}"

    def _say_once(self, note: str) -> None:
        """Pass on what an environment noted: those of other processes may note the same."""
        if note not in self._noted:
            self._noted.add(note)
            self._say(f"note: {note}")

    def _say(self, text: str) -> None:
        self.panel.message(text)

    def _close_log(self) -> None:
        with suppress(OSError):  # every row was on disk already, or its failure has been told
            self.log.close()


def resolved_by(spec: AgentSpec) -> dict[str, str]:
    """Return what `auto` came to in options that an agent remembers."""
    return {
        "stem": spec.stem,
        "observations": spec.observations,
        "normalise_observations": "on" if spec.normalised else "off",
    }


def _title(config: TrainConfig, engine: Engine) -> str:
    spec = engine.agent.spec
    protocol = f" · {spec.protocol}" if spec.protocol else ""
    precision = "bf16" if engine.agent.autocast_dtype else "fp32"
    return (
        f"{spec.game or spec.env_id}{protocol} · {spec.core} · {spec.stem} · seed {config.seed} · "
        f"{count_numbers(engine.agent.parameters()) / 1e6:.2f}M parameters · {engine.device.type} {precision}"
        f"{' · ' * bool(engine.uses)}{engine.uses}"
    )
