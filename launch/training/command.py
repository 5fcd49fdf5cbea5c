"""`deltabeast train`: from a configuration to a trained agent on disk, resumable at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from gymnasium.vector import VectorEnv
from rich.console import Console

from ...agents import Actor, Agent, CheckpointError, WeightStore, make_actor_agent
from ...agents.cuda.graphs import FIRST
from ...envs import available_cores
from ..config import TrainConfig
from ..errors import RunError, UsageError
from ..processes.machine import autocast_dtype, own_cores, pin, prepare_process, resolve_device
from .local.sources import Lockstep, Source, Threads
from .local.workers import Workers, make_env, update
from .plan import (
    agent_spec,
    check_local,
    emulator_threads,
    groups,
    left_out_notes,
    make_learner,
    overlaps,
    share,
    worker_count,
)
from .progress import Window
from .randomness import rng_states, set_rng_states
from .run import Run, Update

PAPER_GAMES = "paper20"
"""What --game calls the games of the publication."""


def train(config: TrainConfig) -> None:
    """Train or resume the run that `config` describes.

    Raises UsageError before anything is written if the configuration is wrong, and RunError, with a
    checkpoint saved where that is possible, if the run had to stop. StoppedBySignal says that SIGINT or
    SIGTERM ended it early, with a checkpoint.
    """
    prepare_process()
    try:
        if config.cores or config.seeds is not None or config.game == PAPER_GAMES:
            _sweep(config)
            return
        if config.engine == "local":
            check_local(config)
        with ExitStack() as stack:
            make_run(config, stack).run()
    except CheckpointError as error:
        raise RunError(str(error)) from error


def _sweep(config: TrainConfig) -> None:
    if config.engine != "ray":
        raise UsageError("--cores, --seeds and --game paper20 make a sweep, which needs --engine ray")
    from .sweep import sweep

    sweep(config)


def make_run(config: TrainConfig, stack: ExitStack) -> Run:
    if config.engine == "ray":
        from .ray.engine import ClusterTrainer

        return ClusterTrainer(config, stack)
    return Trainer(config, stack)


class Trainer(Run):
    """A run on this machine alone: the local engine."""

    def __init__(
        self, config: TrainConfig, stack: ExitStack, console: Console | None = None, cores: int | None = None
    ) -> None:
        """`cores` is how many of the machine's are the run's: all, if it is None."""
        try:
            super().__init__(config)
            self.device = resolve_device(config.device)
            # The shapes of a run are always the same, so that trying algorithms pays.
            torch.backends.cudnn.benchmark = not config.deterministic
            self.cores = cores or available_cores()
            count = worker_count(config, self.device, self.cores)
            self.share = share(config, count)
            threads = max(1, self.cores // count)
            torch.set_num_threads(threads)
            pinned = own_cores(count)
            if pinned is not None:
                stack.callback(pin(pinned[0]))
            split = groups(config, self.device)
            part = replace(self.share, num_envs=self.share.num_envs // split)
            each = emulator_threads(config, self.device, threads)
            envs = [self._make_env(stack, part, each) for _ in range(config.num_actors * split)]
            spec = agent_spec(config, envs[0])
            self.agent = Agent(spec)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error

        state, notes = self.find(spec, stack)
        notes = left_out_notes(envs[0]) + notes
        agent = self.agent
        agent.to(self.device).autocast_dtype = autocast_dtype(config.precision, self.device, spec.stem)
        self.workers = Workers(self.share, count, threads, pinned)
        stack.callback(self.workers.close)
        self.workers.share(agent)

        self.learner = make_learner(agent, config, self.total_steps)
        if state is not None:
            self.learner.load_state_dict(state["learner"])
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
        self.source = self._make_source(0 if state is None else state.get("turn", 0))
        if state is not None:
            notes += self._resume_actors(state)
            set_rng_states(state, self.device)  # last: whatever is built before draws from them
        self.begin(state is not None, notes, stack, console)

    def _make_env(self, stack: ExitStack, config: TrainConfig, threads: int) -> VectorEnv:
        env = make_env(config, threads)
        stack.callback(env.close)
        return env

    def _make_source(self, turn: int) -> Source:
        if not overlaps(self.config, self.device):
            return Lockstep(self.actors, self.share.batch_size, turn, self._settle)
        on_start = _own_resources(self.cores // (len(self.actors) + 1), self.device)
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

    @property
    def steps(self) -> int:
        return self.learner.steps

    def working(self) -> Source:
        return self.source

    def updates(self) -> Iterator[Update]:
        learner = self.learner
        self.workers.start(update, learner.version)
        for batch in self.source:
            with self.stopwatch("learning"):
                part = learner.backward(batch)
            parts = [part, *self.workers.results()]
            with self.stopwatch("learning"):
                self.workers.add_gradients()
                metrics = learner.step(parts)
                self.weights.publish(self.agent, learner.version)
            yield Update(metrics, [part.episodes for part in parts])
            self.workers.start(update, learner.version)

    def at_boundary(self) -> bool:
        return self.source.at_boundary()

    def new_window(self) -> Window:
        actors = [actor.stopwatch for actor in self.actors]
        return Window(self.stopwatch, actors, in_turns=not overlaps(self.config, self.device))

    def snapshot(self, actors: bool) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "actors": [*(actor.state_dict() for actor in self.actors), *self.workers.state_dicts()]
            if actors
            else None,
            "turn": self.source.turn if actors else 0,
            **rng_states(self.device),
        }

    def stages(self) -> str:
        return f"learner: {self.stopwatch.stage}; {self.source.stage()}{self.workers.stage()}"


def _own_resources(cores: int, device: torch.device) -> Callable[[], None]:
    """What an actor thread does first: take its share of the cores for its own OpenMP pool, and on a GPU a
    stream of its own."""

    def take() -> None:
        torch.set_num_threads(max(1, cores))
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # what the main thread prepared is there
            torch.cuda.set_stream(torch.cuda.Stream(device, priority=FIRST))

    return take
