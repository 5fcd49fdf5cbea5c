"""`deltabeast train`: from a configuration to a trained agent on disk, resumable at any moment."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from ..agents import (
    Actor,
    Agent,
    AgentSpec,
    Learner,
    LearnerConfig,
    NonFiniteError,
    Unroll,
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
from .sources import ActorError, Lockstep, Threads
from .units import format_steps, parse_steps

_SILENCE = 120.0
"""Seconds without an update after which the run says what it waits for."""


def train(config: TrainConfig) -> None:
    """Train or resume the run that `config` describes.

    Raises UsageError before anything is written if the configuration is wrong, and RunError, with a
    checkpoint saved where that is possible, if the run had to stop.
    """
    keep_freed_memory()
    with ExitStack() as stack:
        trainer = Trainer(config, stack)
        trainer.run()


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
        agent.to(self.device).autocast_dtype = autocast_dtype(config.precision, self.device)

        self.agent = agent
        self.learner = Learner(agent, _learner_config(config, self.total_steps))
        self.scores = Scores()
        if state is not None:
            self.learner.load_state_dict(state["learner"])
            self.scores.load_state_dict(state["scores"])
            torch.set_rng_state(state["torch_rng"])
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
        if state is not None and state["actors"] is not None and len(state["actors"]) == len(self.actors):
            for actor, actor_state in zip(self.actors, state["actors"], strict=True):
                actor.load_state_dict(actor_state)
        self.start_step = self.learner.steps
        if state is None:
            write_config(self.run_dir, config)
            self._save()
        self.log = RunLog(self.run_dir, resume_step=self.start_step if state is not None else None)
        stack.callback(self.log.close)
        if state is None:
            self.log.hyperparameters(_hyperparameters(config, agent))
        self.panel = stack.enter_context(Panel(self._title(), self.total_steps, self.start_step))
        for warning in damage:
            self.panel.message(f"warning: {warning.message}")
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
        if self._overlaps():
            source: Threads | Lockstep = Threads(
                self.actors, self.config.batch_size, _share_cores(self.actors)
            )
        else:
            source = Lockstep(self.actors, self.config.batch_size)
        with source, _stop_signals(self.panel) as stop, self._watch(source):
            try:
                self._updates(iter(source), stop)
            except (ActorError, NonFiniteError) as error:
                self._save(actors=False)
                raise RunError(f"{error}; step {self.learner.steps} is saved in {self.run_dir}") from error
        self.panel.message(self._farewell(stop.is_set()))

    def _overlaps(self) -> bool:
        """Whether actors act while the learner learns; on CPUs both would fight for the same cores."""
        wanted = {"on": True, "off": False, "auto": self.device.type == "cuda"}[self.config.overlap]
        return wanted and not self.config.deterministic

    def _updates(self, batches: Iterator[Unroll], stop: threading.Event) -> None:
        config, learner = self.config, self.learner
        speed = Speed(learner.steps)
        logged = saved = window = time.monotonic()
        sums: defaultdict[str, float] = defaultdict(float)
        updates = 0
        lag_max = 0.0
        before = self._stage_seconds()
        while learner.steps < self.total_steps and not stop.is_set():
            batch = next(batches)
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
            done = learner.steps >= self.total_steps or stop.is_set()
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
            milestone = self._passed_milestone(batch.num_steps)
            if now - saved >= config.checkpoint_minutes * 60 or milestone or done:
                self._save(milestone=milestone)
                saved = time.monotonic()

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
            "torch_rng": torch.get_rng_state(),
        }
        save_checkpoint(self.run_dir, self.learner.steps, self.agent, state, milestone)

    @contextmanager
    def _watch(self, source: Threads | Lockstep) -> Iterator[None]:
        """Say what the run waits for when no update comes for long: nothing hangs in silence."""
        finished = threading.Event()

        def watch() -> None:
            while not finished.wait(_SILENCE / 4):
                silent = time.monotonic() - self.updated_at
                if silent > _SILENCE:
                    stages = f"learner: {self.stopwatch.stage}; {source.stage()}"
                    self.panel.message(f"no update for {silent:.0f} s ({stages})")

        thread = threading.Thread(target=watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    def _farewell(self, stopped: bool) -> str:
        verb = "stopped" if stopped and self.learner.steps < self.total_steps else "finished"
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
    if config.learning_rate <= 0:
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


@contextmanager
def _stop_signals(panel: Panel) -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event; a second one ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        panel.message("stopping after this update and a checkpoint; once more to stop at once")

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
