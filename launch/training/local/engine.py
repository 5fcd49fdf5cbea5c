"""The local engine: actors and a learner on this machine, in one process or in several side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from ....agents import Actor, Agent, NonFiniteError, Unroll, WeightStore, make_actor_agent
from ....agents.accelerate import accelerate, inference_for
from ....agents.cuda.graphs import ACTOR_PRIORITY
from ....agents.cuda.libraries import load_libraries
from ....agents.cuda.page_lock import page_locked
from ....agents.stopwatch import Stopwatch
from ....agents.weights import SharedWeights
from ....envs import available_cores
from ...config import TrainConfig
from ...errors import wrong_input
from ...processes.env_processes import ProcessEnvs
from ...processes.machine import autocast_dtype, own_cpus, pin, resolve_device
from ...units import parse_steps
from ..cpu_parts import cache_spec, fused_parts
from ..engine import (
    ActorError,
    CannotRepeat,
    Engine,
    Update,
    actor_failed,
    restoring,
    saved_actors,
)
from ..plan import (
    await_process_envs,
    env_groups,
    env_processes,
    env_shard,
    make_agent,
    make_env,
    make_learner,
    observation_notes,
    overlaps,
    per_process,
    returns_discount,
    slow_to_make,
    start_env_servers,
    worker_count,
)
from ..progress import Window
from ..randomness import actor_seed, rng_states, set_rng_states
from ..reading_ages import ReadingAges
from ..reuse import (
    REFILLS,
    batches_of_updates,
    make_replay,
    replay_notes,
    saved_replay,
    updates_per_batch,
)
from ..threads import operation_threads, process_threads, thread_notes, uses
from .sources import Lockstep, Source, Threads
from .workers import Worker, Workers


class LocalEngine(Engine):
    """Updates made on this machine; on a CPU by as many processes as pay, this one being the first."""

    def __init__(self, config: TrainConfig, stack: ExitStack, cpus: int | None = None) -> None:
        """`stack` ends what is started here; `cpus` is the run's share of the machine's CPUs, by default all.

        Raises UsageError for options that are wrong.
        """
        self.config = config
        self.stop = threading.Event()
        self.stopwatch = Stopwatch()
        self._stack = stack
        self._left_of_batch = 0
        with wrong_input():
            self.device = resolve_device(config.device)
            # The shapes of a run are always the same, so that trying algorithms pays.
            torch.backends.cudnn.benchmark = not config.deterministic
            self.cpus = cpus or config.threads or available_cores()
            self._count = worker_count(config, self.device, self.cpus)
            self.process_config = per_process(config, self._count)
            self._threads = process_threads(config, self.cpus, self._count)
            torch.set_num_threads(self._threads)
            self._pinned = own_cpus(self._count)
            if self._pinned is not None:
                stack.callback(pin(self._pinned[0]))
                self.pinned_cpus = self._pinned
            self._envs = self._make_envs()
            locking = self._lock_pages()
            self.agent = make_agent(config, self._envs[0])
            replay = replay_notes(config, self._envs[0], self.agent, self.device)
        self.uses = uses(self._count, self._threads, self._env_processes)
        self.notes = [*observation_notes(self._envs[0], self.agent.spec), *replay, *locking]
        if cpus is None and config.threads is None:
            self.notes += thread_notes(self.cpus, self._count, self._threads)

    def _make_envs(self) -> list[VectorEnv]:
        """Make a vector environment for each `Actor`: on a GPU 2 N of them for `--num-actors N`, with half of
        the environments each (`env_groups`), stepped by other processes if that pays."""
        config, split = self.config, env_groups(self.config, self.device)
        part = replace(self.process_config, num_envs=self.process_config.num_envs // split)
        # Actors that run at the same time divide the process's threads.
        at_once = config.num_actors if overlaps(config, self.device) else 1
        threads = max(1, self._threads // at_once)
        actors = config.num_actors * split
        sets, processes = env_processes(config, self.device, part.num_envs, actors, self.cpus)
        self._env_processes = sets * processes
        if processes:
            with slow_to_make(config):
                servers = start_env_servers(part, sets, processes, actors, self._stack)
                load_libraries(self.device)  # for seconds, in which processes make their games
                return [*await_process_envs(servers, self._stack)]
        envs: list[VectorEnv] = []
        for _ in range(actors):
            envs.append(make_env(part, threads, env_shard(config, self._count, 0)))
            self._stack.callback(envs[-1].close)
        return envs

    def _lock_pages(self) -> list[str]:
        """Let a GPU copy observations from the memory of processes by itself; return a note if it cannot."""
        memories = [env.observations for env in self._envs if isinstance(env, ProcessEnvs)]
        locked = [self._stack.enter_context(page_locked(memory, self.device)) for memory in memories]
        return (
            [] if all(locked) else ["the GPU's driver cannot lock memory: observations are copied once more"]
        )

    def start(self, agent: Agent, state: Mapping[str, Any] | None, say: Callable[[str], None]) -> list[str]:
        config = self.config
        self.agent = agent.to(self.device)
        agent.autocast_dtype = autocast_dtype(config.precision, self.device, agent.spec.stem)
        if self.device.type == "cpu":
            torch.set_num_threads(operation_threads(config, self._threads, agent))
        self.resolved = {
            "precision": "fp32" if agent.autocast_dtype is None else "bf16",
            "overlap": "on" if overlaps(config, self.device) else "off",
        }
        # Without this, a resumed run would repeat its first episodes.
        start_step = 0
        if state is not None and not config.deterministic:
            with restoring("learner"):
                start_step = state["learner"]["steps"]
        self.workers = Workers(config, self._count, self._threads, self._pinned, start_step)
        self._stack.callback(self.workers.close)
        self.learner = make_learner(agent, config, parse_steps(config.steps), shares_batches=self._count > 1)
        if state is not None:
            with restoring("learner"):
                self.learner.load_state_dict(state["learner"])
        # In turns on a CPU actors run the learner's own agent.
        self._shares_agent = self.device.type == "cpu" and not overlaps(config, self.device)
        self.replay = make_replay(self.process_config, agent, 0)
        self.reading_ages = ReadingAges(agent)
        version = self.learner.version
        self.weights = SharedWeights(version) if self._shares_agent else WeightStore(agent, version)
        self.actors = [self._make_actor(index, env, start_step) for index, env in enumerate(self._envs)]
        notes = self._accelerate()
        if self._count > 1:
            self.learner.all_reduce = self.workers.total
        self.source = self._make_source(0 if state is None else state.get("turn", 0))
        if state is None:
            return notes
        with restoring("actors"):
            notes += self._resume_actors(state)
        with restoring("replay"):
            notes += self._resume_replay(state)
        with restoring("torch_rng"):
            set_rng_states(state, self.device)  # last: whatever is built before draws from them
        return notes

    def _accelerate(self) -> list[str]:
        """Attach what a CPU computes faster, in all workers too; return a note for each part that is not."""
        spec, actor = cache_spec(self.process_config, self.device, self.agent), self.actors[0]
        parts, notes, resolved = fused_parts(
            self.config, self.learner, lambda: actor.observation, spec, self.fused_record
        )
        self.resolved = {**self.resolved, **resolved}
        self.workers.publish_agent(self.agent, parts)
        if parts:
            inference = accelerate(self.learner, parts, spec)
            for actor in self.actors:
                actor.set_inference(inference)
        return notes

    def _make_actor(self, index: int, env: VectorEnv, start_step: int) -> Actor:
        return Actor(
            env,
            self.agent if self._shares_agent else make_actor_agent(self.agent),
            self.weights,
            self.config.unroll_length,
            seed=actor_seed(self.config.seed, index, start_step=start_step),
            deterministic=self.config.deterministic,
            inference=inference_for(self.device, (), self.config.deterministic),  # `_accelerate` adds parts
            env_shard=env_shard(self.config, self._count, 0),
            discount=returns_discount(self.config),
            first_env=index * env.num_envs,
        )

    def _make_source(self, turn: int) -> Source:
        if not overlaps(self.config, self.device):
            return Lockstep(self.actors, self.process_config.batch_size, turn, self._synchronize)
        threads_per_actor = min(self._threads, self.cpus // (len(self.actors) + 1))
        on_start = _own_resources(threads_per_actor, self.device)
        return Threads(self.actors, self.config.batch_size, self.stop, on_start, self._synchronize)

    def _synchronize(self) -> None:
        """Wait for the update that a GPU works on, while there is no batch for another."""
        with self.stopwatch("learning"):
            self.learner.synchronize()

    def _resume_actors(self, state: Mapping[str, Any]) -> list[str]:
        """Bring the actors back to where they were, as far as possible; return notes for the user.

        Raises CannotRepeat if `--deterministic` cannot be kept.
        """
        saved, exact = state["actors"], self.config.deterministic
        if saved is None:
            return ["the checkpoint holds no episodes, so they begin anew"] if exact else []
        if exact:
            saved = saved_actors(state, len(self.actors))
        elif state.get("device", self.device.type) != self.device.type:
            return []
        for actor, actor_state in zip(self.actors, saved, strict=False):
            try:
                actor.load_state_dict(actor_state)
            except (ValueError, RuntimeError) as error:
                raise CannotRepeat(str(error)) from error
        self.workers.load_state_dict(saved[0])
        return []

    def _resume_replay(self, state: Mapping[str, Any]) -> list[str]:
        """Fill the replay buffer as it was under `--deterministic`; return notes. Raises CannotRepeat."""
        if self.replay is None:
            return []
        saved = saved_replay(state, 1) if self.config.deterministic else None
        if saved is None:
            return [REFILLS]
        self.replay.load_state_dict(saved[0])
        return []

    @property
    def steps(self) -> int:
        return self.learner.steps

    def acting(self) -> Source:
        return self.source

    def updates(self, should_pause: Callable[[], bool]) -> Iterator[Update]:
        learner = self.learner
        self.workers.start(Worker.update, learner.version, learner.reward_divisor)
        for batch in self._batches():
            with self.stopwatch("learning"), _learner_failures():
                part = self.workers.leave(self.learner.backward(batch))
            parts = [part, *self.workers.results()]
            with self.stopwatch("learning"):
                parts = self.workers.add_up(parts)
                metrics = learner.step(parts)
                self.weights.publish(self.agent, learner.version)
            yield Update([metrics], [part.episodes for part in parts])
            self.workers.start(Worker.update, learner.version, learner.reward_divisor)

    def _batches(self) -> Iterator[Unroll]:
        """Yield what each update learns from; `_left_of_batch` counts the updates that its batch has left."""
        for batch in self.source:
            self.reading_ages.add(batch)
            self._left_of_batch = updates_per_batch(self.config)
            version = self.learner.version
            with self.stopwatch("learning"), _learner_failures():
                parts = batches_of_updates(self.process_config, batch, version, self.replay)
            while self._left_of_batch:
                self._left_of_batch -= 1
                with self.stopwatch("learning"), _learner_failures():
                    part = next(parts)
                yield part

    def at_boundary(self) -> bool:
        return not self._left_of_batch and self.source.at_boundary()

    def snapshot(self, actors: bool) -> dict[str, Any]:
        states = None
        if actors:
            states = [actor.state_dict() for actor in self.actors]
        replay = {}
        if actors and self.replay is not None and self.config.deterministic:
            replay = {"replay": [self.replay.state_dict()]}
        return {
            "learner": self.learner.state_dict(),
            "actors": states,
            "turn": self.source.turn if actors else 0,
            **replay,
            **rng_states(self.device),
        }

    def row(self) -> dict[str, float]:
        with self.stopwatch("learning"), _learner_failures():
            return self.reading_ages.sample()

    def stages(self) -> str:
        working = [name for env in self._envs if isinstance(env, ProcessEnvs) for name in env.working()]
        steps = f"; steps of {', '.join(dict.fromkeys(working))} under way" if working else ""
        return f"learner: {self.stopwatch.stage}; {self.source.stage()}{self.workers.stage()}{steps}"

    def new_window(self) -> Window:
        actors = [actor.stopwatch for actor in self.actors]
        return Window(self.stopwatch, actors, in_turns=not overlaps(self.config, self.device))


@contextmanager
def _learner_failures() -> Iterator[None]:
    """Raise ActorError for what goes wrong: the weights have not changed, and can be saved."""
    try:
        yield
    except (NonFiniteError, ActorError):
        raise
    except Exception as error:
        failure = actor_failed("the learner", error)
        raise failure from failure.__cause__


def _own_resources(threads: int, device: torch.device) -> Callable[[], None]:
    """Return what an actor thread calls first: an OpenMP pool of `threads`, and on a GPU a stream,
    of its own."""

    def take() -> None:
        torch.set_num_threads(max(1, threads))
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # what the main thread prepared is there
            torch.cuda.set_stream(torch.cuda.Stream(device, priority=ACTOR_PRIORITY))

    return take
