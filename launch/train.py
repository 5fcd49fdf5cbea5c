"""`deltabeast train`: from a configuration to a trained agent on disk, resumable at any moment."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from ..agents import (
    Actor,
    Agent,
    AgentSpec,
    CheckpointError,
    Learner,
    LearnerConfig,
    NonFiniteError,
    WeightStore,
    default_stem,
    find_checkpoints,
    load_latest,
    make_actor_agent,
    save_checkpoint,
)
from ..agents.stopwatch import Stopwatch
from ..envs import available_cores, canonical_game, make_vector_env
from .config import TrainConfig
from .errors import RunError, UsageError
from .machine import autocast_dtype, keep_freed_memory, resolve_device
from .panel import Panel
from .progress import Scores, Speed, time_shares
from .run_dir import claim, default_run_dir, write_config
from .run_log import RunLog
from .sources import ActorError, Lockstep, Source, Threads
from .units import format_steps, parse_steps

_SILENCE = 120.0
"""Seconds without an update after which the run says what it waits for."""


def train(config: TrainConfig) -> None:
    """Train or resume the run that `config` describes.

    Raises UsageError before anything is written if the configuration is wrong, and RunError, with a
    checkpoint saved where that is possible, if the run had to stop.
    """
    keep_freed_memory()
    try:
        with ExitStack() as stack:
            trainer = Trainer(config, stack)
            trainer.run()
    except CheckpointError as error:
        raise RunError(str(error)) from error


class Trainer:
    """One run: its agent, learner and actors, its files, and the loop over updates."""

    def __init__(self, config: TrainConfig, stack: ExitStack) -> None:
        self.config = config
        try:
            self.total_steps = parse_steps(config.steps)
            self.milestone_steps = parse_steps(config.milestone_steps)
            _check(config)
            self.device = resolve_device(config.device)
            if config.game is not None:
                config.game = canonical_game(config.game)
            self.run_dir = config.run_dir or default_run_dir(config)
            _seed_everything(config)
            envs = [self._make_env(stack) for _ in range(config.num_actors)]
            spec = _agent_spec(config, envs[0])
            agent = Agent(spec)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error

        _check_resume(config, self.run_dir)
        stack.enter_context(claim(self.run_dir))
        with warnings.catch_warnings(record=True) as damage:
            warnings.simplefilter("always")
            found = load_latest(self.run_dir)
        state: dict[str, Any] | None = None
        if found is not None:
            agent, state = found[0], found[1]
            _check_same_agent(agent.spec, spec, self.run_dir)
        agent.to(self.device).autocast_dtype = autocast_dtype(config.precision, self.device, spec.stem)

        self.agent = agent
        self.learner = Learner(agent, _learner_config(config, self.total_steps))
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
            _set_rng_states(state, self.device)  # last: whatever is built before draws from them
        self.start_step = self.saved_step = self.learner.steps
        with _saying_what_cannot_be_written(self.run_dir):
            write_config(self.run_dir, config)
            if state is None:
                self._save()
            self.log = RunLog(self.run_dir, resume_step=self.start_step if state is not None else None)
            stack.callback(self._close_log)
            if state is None:
                self.log.hyperparameters(_hyperparameters(config, agent))
        self.panel = stack.enter_context(Panel(self._title(), self.total_steps, self.start_step))
        for note in notes:
            self.panel.message(note)
        if state is not None:
            self.panel.message(f"resuming {self.run_dir} at step {self.start_step}")
        self.stopwatch = Stopwatch()
        self.updated_at = time.monotonic()

    def _make_env(self, stack: ExitStack) -> VectorEnv:
        config = self.config
        env = make_vector_env(
            config.game, env_id=config.env, num_envs=config.num_envs, protocol=config.protocol
        )
        stack.callback(env.close)
        return env

    def _make_source(self, turn: int) -> Source:
        if not self._overlaps():
            return Lockstep(self.actors, self.config.batch_size, turn)
        return Threads(self.actors, self.config.batch_size, self.stop, _share_cores(self.actors))

    def _resume_actors(self, state: Mapping[str, Any]) -> list[str]:
        """Bring the actors back to where they were, as far as that can be; returns what to say about it.

        Raises UsageError if `--deterministic` cannot be kept.
        """
        saved, exact = state["actors"], self.config.deterministic
        if saved is None:
            return ["the run had failed, so its episodes begin anew"] if exact else []
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
        parameters = sum(p.numel() for p in self.agent.parameters())
        protocol = f" · {spec.protocol}" if spec.protocol else ""
        precision = "bf16" if self.agent.autocast_dtype else "fp32"
        return (
            f"{spec.game or spec.env_id}{protocol} · {spec.core} · {spec.stem} · seed {config.seed} · "
            f"{parameters / 1e6:.2f}M parameters · {self.device.type} {precision}"
        )

    def run(self) -> None:
        """Update until the steps are done, a signal asks to stop, or something fails."""
        with _stop_signals(self.stop, self.panel), self._watch(), self.source:
            try:
                self._updates()
            except (ActorError, NonFiniteError, OSError) as error:
                if isinstance(error, ActorError):
                    self.panel.message("".join(traceback.format_exception(error.__cause__)).rstrip())
                reason = _cannot_write(self.run_dir, error) if isinstance(error, OSError) else str(error)
                raise RunError(f"{reason}; {self._rescue()}") from error
        self.panel.message(self._farewell())

    def _overlaps(self) -> bool:
        """Whether actors act while the learner learns; on CPUs both would fight for the same cores."""
        wanted = {"on": True, "off": False, "auto": self.device.type == "cuda"}[self.config.overlap]
        return wanted and not self.config.deterministic

    def _updates(self) -> None:
        config, learner, source = self.config, self.learner, self.source
        speed = Speed(learner.steps)
        logged = saved = window = time.monotonic()
        sums: defaultdict[str, float] = defaultdict(float)
        updates = 0
        lag_max = 0.0
        milestone = False
        before = self._stage_seconds()
        if learner.steps >= self.total_steps:
            return
        for batch in source:
            with self.stopwatch("learning"):
                metrics = learner.update(batch)
                self.weights.publish(self.agent, learner.version)
            self.updated_at = now = time.monotonic()
            self.scores.add(batch.episodes)
            speed.mark(learner.steps)
            updates += 1
            lag_max = max(lag_max, metrics["policy_lag"])
            for name, value in metrics.items():
                sums[name] += value
            whole = source.at_boundary()
            done = learner.steps >= self.total_steps or (self.stop.is_set() and whole)
            if now - logged >= config.log_seconds or done:
                after = self._stage_seconds()
                row = {name: value / updates for name, value in sums.items()}
                row |= {"policy_lag_max": lag_max, "sps": speed.over(60.0), "sps_10s": speed.over(10.0)}
                row |= self.scores.row() | self._shares(before, after, now - window)
                self.log.write(learner.steps, row)
                self.panel.update(learner.steps, row)
                logged, window, before = now, now, after
                sums.clear()
                updates, lag_max = 0, 0.0
            milestone |= self._passed_milestone(batch.num_steps)
            due = milestone or now - saved >= config.checkpoint_minutes * 60
            if done or (due and whole):
                self._save(milestone=milestone)
                saved, milestone = time.monotonic(), False
            if done:
                return
        self._save()

    def _passed_milestone(self, steps: int) -> bool:
        now = self.learner.steps
        return now // self.milestone_steps > (now - steps) // self.milestone_steps

    def _stage_seconds(self) -> list[dict[str, float]]:
        """Seconds per stage so far: the learner's thread first, then each actor."""
        return [dict(watch.seconds) for watch in (self.stopwatch, *(a.stopwatch for a in self.actors))]

    def _shares(
        self, before: list[dict[str, float]], after: list[dict[str, float]], wall: float
    ) -> dict[str, float]:
        learner, *actors = (
            {stage: seconds - old.get(stage, 0.0) for stage, seconds in new.items()}
            for old, new in zip(before, after, strict=True)
        )
        return time_shares(learner, actors, wall, in_turns=not self._overlaps())

    def _save(self, milestone: bool = False, actors: bool = True) -> None:
        """Write a checkpoint; without the actors' state after a failure, when it may be half-way."""
        state = {
            "learner": self.learner.state_dict(),
            "scores": self.scores.state_dict(),
            "actors": [actor.state_dict() for actor in self.actors] if actors else None,
            "turn": self.source.turn if actors else 0,
            "device": self.device.type,
            **_rng_states(self.device),
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

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """Answer a request to stop, and say what the run waits for when no update comes for long."""
        finished = threading.Event()

        def watch() -> None:
            answered = False
            spoke = self.updated_at
            while not finished.wait(min(0.5, _SILENCE / 4)):
                if self.stop.is_set() and not answered:
                    answered = True
                    self.panel.message(
                        "stopping after this update and a checkpoint; once more to stop at once"
                    )
                now = time.monotonic()
                if now - max(self.updated_at, spoke) > _SILENCE:
                    spoke = now
                    stages = f"learner: {self.stopwatch.stage}; {self.source.stage()}"
                    self.panel.message(f"no update for {now - self.updated_at:.0f} s ({stages})")

        thread = threading.Thread(target=watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    def _farewell(self) -> str:
        verb = "stopped" if self.learner.steps < self.total_steps else "finished"
        step = f"{self.learner.steps} of {format_steps(self.total_steps)} steps"
        then = "run the same command to go on" if verb == "stopped" else f"deltabeast eval {self.run_dir}"
        return f"{verb} at {step}, saved in {self.run_dir}; next: {then}"


def _check(config: TrainConfig) -> None:
    """Raise ValueError for what no part of the system would notice by itself."""
    big, small = max(config.num_envs, config.batch_size), min(config.num_envs, config.batch_size)
    for name in ("num_envs", "num_actors", "batch_size", "unroll_length"):
        if getattr(config, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if big % small:
        raise ValueError(
            f"--num-envs {config.num_envs} and --batch-size {config.batch_size}: "
            "one must be a multiple of the other"
        )
    if config.game is None and config.env is None:
        raise ValueError(
            "no environment given; say --game gopher, or --env CartPole-v1 for any Gymnasium one"
        )
    if config.deterministic and config.overlap == "on":
        raise ValueError("--deterministic takes turns, so it excludes --overlap on")
    if not 0 <= config.seed < 2**31:
        raise ValueError(f"--seed {config.seed}: give a number from 0 to {2**31 - 1}")
    if not 0 < config.learning_rate < math.inf:
        raise ValueError("--learning-rate must be positive")
    if not 0 <= config.discount <= 1:
        raise ValueError("--discount must lie between 0 and 1")


def _check_resume(config: TrainConfig, run_dir: Path) -> None:
    exists = bool(find_checkpoints(run_dir))
    if config.resume == "must" and not exists:
        raise UsageError(f"--resume must: no checkpoint in {run_dir}; start the run without it")
    if config.resume == "never" and exists:
        raise UsageError(f"--resume never: {run_dir} already holds a run; give another --run-dir or --seed")


def _check_same_agent(saved: AgentSpec, wanted: AgentSpec, run_dir: Path) -> None:
    for name in AgentSpec.__dataclass_fields__:
        old, new = getattr(saved, name), getattr(wanted, name)
        if old != new:
            raise UsageError(f"{run_dir} holds a run with {name} {old}, not {new}; give another --run-dir")


def _agent_spec(config: TrainConfig, env: VectorEnv) -> AgentSpec:
    shape = tuple(env.single_observation_space.shape or ())
    return AgentSpec(
        observation_shape=shape,
        num_actions=int(env.single_action_space.n),  # type: ignore[attr-defined]
        core=config.core,
        stem=default_stem(shape) if config.stem == "auto" else config.stem,
        core_options=dict(config.core_options),
        game=config.game,
        env_id=config.env,
        protocol=config.protocol if config.game is not None else None,
    )


def _learner_config(config: TrainConfig, total_steps: int) -> LearnerConfig:
    return LearnerConfig(
        total_steps=total_steps,
        learning_rate=config.learning_rate,
        discount=config.discount,
        baseline_cost=config.baseline_cost,
        entropy_cost=config.entropy_cost,
        rmsprop_eps=config.rmsprop_eps,
        max_grad_norm=config.max_grad_norm,
        bptt=config.bptt,
    )


def _hyperparameters(config: TrainConfig, agent: Agent) -> dict[str, Any]:
    kept = {name: value for name, value in vars(config).items() if value is not None and name != "run_dir"}
    parameters = sum(p.numel() for p in agent.parameters())
    return {**kept, "stem": agent.spec.stem, "parameters": parameters}


def _seed_everything(config: TrainConfig) -> None:
    torch.manual_seed(config.seed)
    torch.set_num_threads(available_cores())
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to repeat itself
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _share_cores(actors: list[Actor]) -> Any:
    """What an actor thread does first: take its share of the cores for its own OpenMP pool."""
    share = max(1, available_cores() // (len(actors) + 1))
    return lambda: torch.set_num_threads(share)


def _rng_states(device: torch.device) -> dict[str, Any]:
    """Of the global generators, which a core may draw from; actors have their own."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"torch_rng": torch.get_rng_state(), "cuda_rng": cuda}


def _set_rng_states(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch_rng"])
    if device.type == "cuda" and state.get("cuda_rng") is not None:
        torch.cuda.set_rng_state(state["cuda_rng"], device)


def _cannot_write(run_dir: Path, error: OSError) -> str:
    return f"cannot write to {run_dir}: {os.strerror(error.errno) if error.errno else error}"


@contextmanager
def _saying_what_cannot_be_written(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(_cannot_write(run_dir, error)) from error


@contextmanager
def _stop_signals(stop: threading.Event, panel: Panel) -> Iterator[None]:
    """SIGINT and SIGTERM set the event; a second one ends the process at once."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        # It may interrupt anything, printing and locking included: so it does neither.
        if asked:
            if panel.console.is_terminal:
                os.write(1, b"\x1b[?25h\n")  # the live panel had hidden the cursor
            os._exit(128 + number)
        asked.append(number)
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
