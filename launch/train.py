"""`deltabeast train`: from a configuration to a trained agent on disk, resumable at any moment."""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import VectorEnv
from rich.console import Console

from ..agents import (
    Actor,
    Agent,
    CheckpointError,
    Learner,
    NonFiniteError,
    WeightStore,
    load_latest,
    make_actor_agent,
    save_checkpoint,
)
from ..agents.stopwatch import Stopwatch
from ..envs import available_cores, canonical_game
from . import published
from .config import TrainConfig
from .errors import RunError, StoppedBySignal, UsageError
from .machine import autocast_dtype, own_cores, pin, prepare_process, resolve_device
from .panel import Panel
from .plan import (
    agent_spec,
    check,
    check_resume,
    check_same_agent,
    check_same_options,
    count_parameters,
    hyperparameters,
    learner_config,
    share,
    worker_count,
)
from .progress import Scores, Speed, Window
from .randomness import rng_states, seed_everything, set_rng_states
from .run_dir import claim, default_run_dir, read_config, write_config
from .run_log import RunLog
from .sources import ActorError, Lockstep, Source, Threads
from .supervision import stop_signals, watch
from .units import format_steps, parse_steps
from .workers import Workers, make_env, update


def train(config: TrainConfig) -> None:
    """Train or resume the run that `config` describes.

    Raises UsageError before anything is written if the configuration is wrong, and RunError, with a
    checkpoint saved where that is possible, if the run had to stop. StoppedBySignal says that SIGINT or
    SIGTERM ended it early, with a checkpoint.
    """
    prepare_process()
    try:
        with ExitStack() as stack:
            trainer = Trainer(config, stack)
            trainer.run()
    except CheckpointError as error:
        raise RunError(str(error)) from error


class Trainer:
    """One run: its agent, learner and actors, its files, and the loop over updates."""

    def __init__(self, config: TrainConfig, stack: ExitStack, console: Console | None = None) -> None:
        self.config = config
        try:
            self.total_steps = parse_steps(config.steps)
            self.milestone_steps = parse_steps(config.milestone_steps)
            check(config)
            self.device = resolve_device(config.device)
            if config.game is not None:
                config.game = canonical_game(config.game)
                config.protocol = config.protocol or published.PROTOCOL
            self.run_dir = config.run_dir or default_run_dir(config)
            seed_everything(config.seed, config.deterministic)
            # The shapes of a run are always the same, so that trying algorithms pays.
            torch.backends.cudnn.benchmark = not config.deterministic
            cores = available_cores()
            count = worker_count(config, self.device, cores)
            self.share = share(config, count)
            threads = max(1, cores // count)
            torch.set_num_threads(threads)
            pinned = own_cores(count)
            if pinned is not None:
                stack.callback(pin(pinned[0]))
            envs = [self._make_env(stack, threads) for _ in range(config.num_actors)]
            spec = agent_spec(config, envs[0])
            agent = Agent(spec)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error

        check_resume(config, self.run_dir)
        stack.enter_context(claim(self.run_dir))
        with warnings.catch_warnings(record=True) as damage:
            warnings.simplefilter("always")
            found = load_latest(self.run_dir)
        state: dict[str, Any] | None = None
        if found is not None:
            agent, state = found[0], found[1]
            check_same_agent(agent.spec, spec, self.run_dir)
            check_same_options(read_config(self.run_dir), config, self.run_dir)
        agent.to(self.device).autocast_dtype = autocast_dtype(config.precision, self.device, spec.stem)
        self.workers = Workers(self.share, count, threads, pinned)
        stack.callback(self.workers.close)
        self.workers.share(agent)

        self.agent = agent
        # Warming up draws random numbers, so that a resume would not repeat what a graph did.
        self.learner = Learner(
            agent, learner_config(config, self.total_steps), capture=not config.deterministic
        )
        self.scores = Scores()
        if state is not None:
            self.learner.load_state_dict(state["learner"])
            self.scores.load_state_dict(state["scores"])
        self.weights = WeightStore(agent, self.learner.version)
        self.actors = [
            Actor(
                env,
                make_actor_agent(agent),
                self.weights,
                config.unroll_length,
                seed=config.seed * 1000 + index,
                deterministic=config.deterministic,
            )
            for index, env in enumerate(envs)
        ]
        self.stop = threading.Event()
        self.source = self._make_source(0 if state is None else state.get("turn", 0))
        notes = [f"warning: {warning.message}" for warning in damage]
        if state is not None:
            notes += self._resume_actors(state)
            set_rng_states(state, self.device)  # last: whatever is built before draws from them
        self.start_step = self.saved_step = self.learner.steps
        with _saying_what_cannot_be_written(self.run_dir):
            write_config(self.run_dir, config)
            if state is None:
                self._save()
            self.log = RunLog(self.run_dir, resume_step=self.start_step if state is not None else None)
            stack.callback(self._close_log)
            self.log.hyperparameters(hyperparameters(config, agent))
        self.panel = stack.enter_context(Panel(self._title(), self.total_steps, self.start_step, console))
        for note in notes:
            self.panel.message(note)
        if state is not None:
            self.panel.message(f"resuming {self.run_dir} at step {self.start_step}")
        self.stopwatch = Stopwatch()
        self.updated_at = time.monotonic()

    def _make_env(self, stack: ExitStack, threads: int) -> VectorEnv:
        env = make_env(self.share, threads)
        stack.callback(env.close)
        return env

    def _make_source(self, turn: int) -> Source:
        if not self.overlaps():
            return Lockstep(self.actors, self.share.batch_size, turn, self._settle)
        on_start = _own_resources(len(self.actors), self.device)
        return Threads(self.actors, self.config.batch_size, self.stop, on_start, self._settle)

    def _settle(self) -> None:
        """While there is no batch to go on with, the update that a GPU works on is what is waited for."""
        with self.stopwatch("learning"):
            self.learner.settle()

    def _resume_actors(self, state: Mapping[str, Any]) -> list[str]:
        """Bring the actors back to where they were, as far as that can be; returns what to say about it.

        Raises UsageError if `--deterministic` cannot be kept.
        """
        saved, exact = state["actors"], self.config.deterministic
        if saved is None:
            return ["the checkpoint holds no episodes, so they begin anew"] if exact else []
        if exact:
            if len(saved) != len(self.actors) or any("env" not in actor for actor in saved):
                raise self._cannot_repeat("it was trained without it, or with another --num-actors")
        elif state.get("device", self.device.type) != self.device.type:
            return []
        for actor, actor_state in zip(self.actors, saved, strict=False):
            try:
                actor.load_state_dict(actor_state)
            except (ValueError, RuntimeError) as error:
                raise self._cannot_repeat(str(error)) from error
        self.workers.load_state_dicts(saved[len(self.actors) :])
        return []

    def _cannot_repeat(self, reason: str) -> UsageError:
        return UsageError(
            f"cannot go on with {self.run_dir} under --deterministic: {reason}; "
            "resume without --deterministic, and episodes begin anew"
        )

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
        watchdog = watch(self.stop, lambda: self.updated_at, self._stages, self.panel.message)
        with signals as asked, watchdog, self.source:
            try:
                self._updates()
            except (ActorError, NonFiniteError, OSError) as error:
                if isinstance(error, ActorError):
                    self.panel.message("".join(traceback.format_exception(error.__cause__)).rstrip())
                reason = _cannot_write(self.run_dir, error) if isinstance(error, OSError) else str(error)
                raise RunError(f"{reason}; {self._rescue()}") from error
        self.panel.message(self._farewell())
        if asked and self.learner.steps < self.total_steps:
            raise StoppedBySignal(asked[0])

    def overlaps(self) -> bool:
        """Whether actors act while the learner learns; on CPUs both would fight for the same cores."""
        wanted = {"on": True, "off": False, "auto": self.device.type == "cuda"}[self.config.overlap]
        return wanted and not self.config.deterministic

    def _updates(self) -> None:
        config, learner, source = self.config, self.learner, self.source
        if learner.steps >= self.total_steps:
            return
        speed = Speed(learner.steps)
        actors = [actor.stopwatch for actor in self.actors]
        window = Window(self.stopwatch, actors, in_turns=not self.overlaps())
        saved = time.monotonic()
        milestone = False
        self.workers.start(update, learner.version)
        for batch in source:
            with self.stopwatch("learning"):
                part = learner.backward(batch)
            parts = [part, *self.workers.results()]
            with self.stopwatch("learning"):
                self.workers.add_gradients()
                metrics = learner.step(parts)
                self.weights.publish(self.agent, learner.version)
            self.updated_at = time.monotonic()
            for part in parts:
                self.scores.add(part.episodes)
            speed.mark(learner.steps)
            window.add(metrics)
            whole = source.at_boundary()
            done = learner.steps >= self.total_steps or (self.stop.is_set() and whole)
            if window.age() >= config.log_seconds or done:
                row = window.close() | self.scores.row()
                row |= {"sps": speed.over(60.0), "sps_10s": speed.over(10.0)}
                self.log.write(learner.steps, row)
                self.panel.update(learner.steps, row)
            milestone |= self._passed_milestone(sum(part.num_steps for part in parts))
            due = milestone or self.updated_at - saved >= config.checkpoint_minutes * 60
            if done or (due and whole):
                self._save(milestone=milestone)
                saved, milestone = time.monotonic(), False
            if done:
                return
            self.workers.start(update, learner.version)
        self._save()

    def _passed_milestone(self, steps: int) -> bool:
        now = self.learner.steps
        return now // self.milestone_steps > (now - steps) // self.milestone_steps

    def _save(self, milestone: bool = False, actors: bool = True) -> None:
        """Write a checkpoint; without the actors' state after a failure, when it may be half-way."""
        state = {
            "learner": self.learner.state_dict(),
            "scores": self.scores.state_dict(),
            "actors": [*(actor.state_dict() for actor in self.actors), *self.workers.state_dicts()]
            if actors
            else None,
            "turn": self.source.turn if actors else 0,
            "device": self.device.type,
            **rng_states(self.device),
        }
        save_checkpoint(self.run_dir, self.learner.steps, self.agent, state, milestone)
        self.saved_step = self.learner.steps

    def _rescue(self) -> str:
        """Save what is good after a failure, and say what came of it."""
        if self.learner.steps != self.saved_step:
            for name, parameter in self.agent.named_parameters():
                if not parameter.isfinite().all():
                    return f"{name} is not finite; step {self.saved_step} is saved in {self.run_dir}"
            try:
                self._save(actors=False)
            except CheckpointError as error:
                return str(error)
        return f"step {self.saved_step} is saved in {self.run_dir}"

    def _stages(self) -> str:
        return f"learner: {self.stopwatch.stage}; {self.source.stage()}{self.workers.stage()}"

    def _farewell(self) -> str:
        verb = "stopped" if self.learner.steps < self.total_steps else "finished"
        step = f"{self.learner.steps} of {format_steps(self.total_steps)} steps"
        then = "run the same command to go on" if verb == "stopped" else f"deltabeast eval {self.run_dir}"
        return f"{verb} at {step}, saved in {self.run_dir}; next: {then}"


def _own_resources(actors: int, device: torch.device) -> Callable[[], None]:
    """What an actor thread does first: take its share of the cores for its own OpenMP pool, and on a GPU a
    stream of its own, or its small kernels would queue up behind whole updates."""
    share = max(1, available_cores() // (actors + 1))

    def take() -> None:
        torch.set_num_threads(share)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # what the main thread prepared is there
            torch.cuda.set_stream(torch.cuda.Stream(device, priority=-1))

    return take


def _cannot_write(run_dir: Path, error: OSError) -> str:
    return f"cannot write to {run_dir}: {os.strerror(error.errno) if error.errno else error}"


@contextmanager
def _saying_what_cannot_be_written(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(_cannot_write(run_dir, error)) from error
