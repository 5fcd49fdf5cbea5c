"""The Ray engine: one learner, or several, and any number of actors, on any number of machines.

This process decides who does what next. Unrolls never come here: what it passes on are references to them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from rich.console import Console

from ....agents import Agent, Learner
from ....agents.cpu.verify import NUM_ENVS
from ...config import TrainConfig
from ...errors import wrong_input
from ...processes.machine import autocast_dtype
from ...units import format_duration, parse_steps
from ..cpu_parts import fused_parts
from ..engine import ActorError, ActorsStarted, Engine, Update, WeightsLost, restoring, saved_actors
from ..flat_parameters import flatten, unflatten
from ..plan import learner_config, make_agent, make_env, observation_notes
from ..progress import Window
from ..randomness import actor_seed, rng_states
from ..reuse import REFILLS, replay_notes, saved_replay
from .actor_process import ActorProcess, Header, Order
from .actors import Actors, RemoteActor
from .cluster import Cluster, Handle, Ref, Reply
from .learner_process import FETCHERS, LearnerProcess
from .learners import Learners, Outcome, Shard
from .ledger import COUNTS, Ledger, ShardId
from .resources import Sharding, check_cluster, sharding, wait_for_room
from .restarts import Restarts
from .traffic import Traffic

_POLL = 0.25
"""Seconds after which the loop looks around though no reply came."""
_PLACING = 15.0
"""Seconds that starting may take before a line says what it waits for."""
_RESCUE = 60.0
"""Seconds that learner and actors have to answer when a checkpoint needs them."""


def check_options(config: TrainConfig) -> tuple[Sharding, Agent, list[str]]:
    """Return how batches are shared out, the agent, and notes for the user; no cluster is needed for it.

    Raises UsageError if options are wrong.
    """
    with wrong_input():
        check_cluster(config)
        with closing(make_env(config, 1)) as env:
            agent = make_agent(config, env)
            # The learners' machine is this one unless the run joins a cluster.
            device = torch.device("cpu") if config.ray_address is None else None
            notes = [*observation_notes(env, agent.spec), *replay_notes(config, env, agent, device)]
            return sharding(config), agent, notes


class RayEngine(Engine):
    """Updates made by processes of a Ray cluster."""

    def __init__(self, config: TrainConfig, stack: ExitStack, console: Console | None = None) -> None:
        """Connect to the cluster, or start one; `stack` ends the connection.

        Raises UsageError if options are wrong, or the cluster can never have room for the run.
        """
        self.config = config
        self.stop = threading.Event()
        self.sharding, self.agent, self.notes = check_options(config)
        self.cluster = stack.enter_context(Cluster(config.ray_address))
        self.device = wait_for_room(config, self.cluster, console or Console())
        learners = _processes(config.num_learners, "learner", config.learner_cpus)
        self.uses = f"{learners}, {_processes(config.num_actors, 'actor', config.actor_cpus)}"
        self.ledger = Ledger()
        self.traffic = Traffic(config.num_actors)
        self.learner_restarts = Restarts()
        self._start_again_at = 0.0

    def start(self, agent: Agent, state: Mapping[str, Any] | None, say: Callable[[str], None]) -> list[str]:
        config = self.config
        self._say = say
        agent.autocast_dtype = autocast_dtype(config.precision, torch.device("cpu"), agent.spec.stem)
        learner = self._load(agent, state)
        parts, notes, self.resolved = fused_parts(
            config, learner, self._first_observation, fused_record=self.fused_record
        )
        self._turn, self._actor_states = 0, None
        if state is not None:
            self.ledger.counts.update(self._saved_counts)
            self._turn = state.get("turn", 0)
            with restoring("actors"):
                if config.deterministic and state["actors"] is not None:
                    self._actor_states = saved_actors(state, config.num_actors)
            if config.replay_ratio:
                with restoring("replay"):
                    exact = config.deterministic and saved_replay(state, config.num_learners) is not None
                if not exact:
                    self._learner_state.pop("replay", None)
                    notes.append(REFILLS)
        self.learners = Learners(
            self.cluster,
            config.num_learners,
            self.sharding.per_update,
            partial(self._start_learner, parts),
            config.deterministic,
        )
        # Without this, a resumed run would repeat its first episodes.
        start_step = 0 if config.deterministic else self._steps
        start_actor = partial(self._start_actor, parts, start_step)
        self.actors = Actors(
            self.cluster, config.num_actors, start_actor, say, forgiving=not config.deterministic
        )
        return notes

    def _start_learner(self, parts: Collection[str], rank: int) -> Handle:
        return self.cluster.start(
            LearnerProcess,
            self.config,
            self.agent.spec,
            parts,
            self.device.type,
            rank,
            cpus=self.config.learner_cpus,
            gpus=1.0 if self.device.type == "cuda" else 0.0,
            groups={"fetch": FETCHERS},
        )

    def _start_actor(self, parts: Collection[str], start_step: int, index: int, incarnation: int) -> Handle:
        return self.cluster.start(
            ActorProcess,
            self.config,
            self.agent.spec,
            parts,
            actor_seed(self.config.seed, index, incarnation, start_step),
            self.sharding.columns,
            self._actor_states[index] if self._actor_states is not None else None,
            (incarnation * self.config.num_actors + index) * self.config.num_envs,
            index == 0,
            cpus=self.config.actor_cpus,
            gpus=self.config.actor_gpus,
            spread=True,
        )

    def _first_observation(self) -> NDArray[Any]:
        """Return the first observations `[B, ...]` of a few environments."""
        few = replace(self.config, num_envs=min(self.config.num_envs, NUM_ENVS))
        with closing(make_env(few, 1)) as env:
            observation: NDArray[Any] = env.reset(seed=self.config.seed)[0]
        return observation

    def _load(self, agent: Agent, state: Mapping[str, Any] | None) -> Learner:
        """Take over a checkpoint's agent and numbers, or a new learner's, which is returned."""
        self.agent = agent
        learner = Learner(agent, learner_config(self.config, parse_steps(self.config.steps)))
        if state is None:
            state = {"learner": learner.state_dict(), **rng_states(torch.device("cpu"))}
        names = ("learner", "torch_rng", "cuda_rng", "replay")
        self._learner_state = {name: state[name] for name in names if name in state}
        with restoring("learner"):
            self._steps, self._version = state["learner"]["steps"], state["learner"]["version"]
        self._saved_counts = dict(state.get("unrolls", dict.fromkeys(COUNTS, 0)))
        return learner

    @property
    def steps(self) -> int:
        return self._steps

    def updates(self, should_pause: Callable[[], bool]) -> Iterator[Update | ActorsStarted]:
        with suppress(_Stopped):
            if not self.learners.running:
                self._start_learners()
            while not (self.stop.is_set() and self.at_boundary()):
                self.actors.start_due()
                self._give_orders()
                self.learners.fetch()
                self.learners.begin_update()
                self.actors.report_silent()
                reply = self.cluster.next_reply(_POLL)
                event = None if reply is None else self._handle(reply)
                if isinstance(event, Update) and not (self.stop.is_set() or should_pause()):
                    self.learners.begin_update()  # the next update need not wait until this one is logged
                if event is not None:
                    yield event

    def _start_learners(self) -> None:
        """Start them with the agent of this process. Raises WeightsLost if one dies at once."""
        if self.stop.wait(max(0.0, self._start_again_at - time.monotonic())):
            raise _Stopped
        self._weights = self.cluster.put(flatten(self.agent))
        patience = _placing(self.stop, self._say, self.actors.free)
        self.learners.begin(self._weights, self.cluster.put(self._learner_state), patience)
        self.learner_restarts.began()

    def _give_orders(self) -> None:
        """Let actors act as long as the learners have no more before them than the next two updates."""
        needed = self.sharding.per_update * self.config.num_learners
        order, shards = Order(self._version, [self._weights]), self.sharding.per_unroll
        if self.config.deterministic:  # in turns, and each with the newest weights
            rests = not self.learners.busy and not self.actors.acting()
            if rests and self.learners.unlearned() < needed and self.actors.is_idle(self._turn):
                self.actors.order(self._turn, order, shards)
                self._turn = (self._turn + 1) % self.config.num_actors
            return
        while self.learners.unlearned() < 2 * needed and (index := self.actors.next_idle()) is not None:
            self.actors.order(index, order, shards)

    def _handle(self, reply: Reply) -> Update | ActorsStarted | None:
        """Handle one reply; return the update that it completes."""
        if reply.tag[0] in ("begin", "collect"):
            nobody = not self.actors.alive()
            collected = self.actors.handle(reply)
            if collected is not None:
                self._accept(*collected)
            return ActorsStarted() if nobody and self.actors.alive() else None
        result = self.learners.handle(reply)
        if isinstance(result, Shard):
            self._write_off(result)
        return self._updated(result) if isinstance(result, Outcome) else None

    def _accept(self, actor: RemoteActor, header: Header, data: Sequence[Ref]) -> None:
        """Queue the shards of an unroll for the learners; their data stay where they are."""
        assert actor.location is not None
        for offset, ref in enumerate(data):
            identity = ShardId(actor.index, actor.incarnation, header.sequence + offset)
            if self.ledger.accept(identity):
                self.learners.add(Shard(identity, ref, actor.location.node))
        self.traffic.add(actor.index, header)

    def _write_off(self, shard: Shard) -> None:
        """Count a shard whose data are gone with their node."""
        gone = f"an unroll of actor {shard.identity.actor} is gone with node {shard.node}"
        if self.config.deterministic:
            raise ActorError(gone)
        self.ledger.mark_died([shard.identity])
        self._say(f"{gone}: it was not at the learner yet")

    def _updated(self, outcome: Outcome) -> Update:
        first = outcome.reports[0]
        self.ledger.mark_learned(outcome.learned)
        self._steps, self._version, self._weights = first.steps, first.version, outcome.weights
        self.traffic.learner.seconds["learning"] += first.seconds
        return Update(first.metrics, [report.episodes for report in outcome.reports])

    def at_boundary(self) -> bool:
        whole = not self.config.deterministic or not (self.learners.unlearned() or self.actors.acting())
        return whole and not self.learners.busy

    def finish(self) -> Sequence[Update]:
        updates: list[Update] = []
        patience, start = _within(_RESCUE), time.monotonic()
        while self.learners.busy:
            patience(time.monotonic() - start)
            reply = self.cluster.next_reply(_POLL)
            if reply is not None and reply.tag[0] not in ("begin", "collect"):
                event = self._handle(reply)
                updates += [event] if isinstance(event, Update) else []
        return updates

    def snapshot(self, actors: bool) -> dict[str, Any]:
        if self.learners.running:
            weights, self._learner_state = self.learners.state(_within(_RESCUE))
            self._version = self._learner_state["learner"]["version"]  # a batch may have failed midway
            unflatten(self.agent, weights)
            if actors and self.config.deterministic and self.config.replay_ratio:
                self._learner_state["replay"] = self.learners.replay_states(_within(_RESCUE))
        states = None
        if actors and self.config.deterministic:
            states = self.actors.states(_within(_RESCUE)) or self._actor_states
        return {
            **self._learner_state,
            "actors": states,
            "turn": self._turn if actors else 0,
            "unrolls": dict(self.ledger.counts),
        }

    def restore(self, agent: Agent, state: Mapping[str, Any], lost: WeightsLost) -> float:
        """Go back to a checkpoint; actors, and the unrolls that wait, stay."""
        delay = self.learner_restarts.died()
        self.learners.end()
        self._load(agent, state)
        self.ledger.roll_back(self._saved_counts)
        if self.config.deterministic or delay is None:
            raise ActorError(f"{lost}; run the same command to go on") from lost
        self._start_again_at = time.monotonic() + delay
        return delay

    def stages(self) -> str:
        return f"{self.learners.stage()}; {self.actors.stage()}"

    def new_window(self) -> Window:
        return Window(self.traffic.learner, self.traffic.actors, in_turns=self.config.deterministic)

    def row(self) -> dict[str, float]:
        row: dict[str, float] = {"actors": self.actors.alive(), "actor_restarts": self.actors.restarts}
        row |= {"learner_restarts": self.learner_restarts.total}
        row |= {f"unrolls_{how}": count for how, count in self.ledger.counts.items()}
        return row | self.traffic.row([actor.location for actor in self.actors.all])


def _processes(count: int, what: str, cpus: float) -> str:
    return f"{count} {what}{'s' * (count > 1)} of {cpus:g} CPUs"


class _Stopped(Exception):
    """The run was asked to stop while it waited for something else than an update."""


def _placing(
    stop: threading.Event, say: Callable[[str], None], free: Callable[[], str]
) -> Callable[[float], None]:
    """Return a callback for waits, which says periodically that the learner is still unscheduled."""
    said = 0.0

    def wait(waited: float) -> None:
        nonlocal said
        if stop.is_set():
            raise _Stopped
        if waited - said > _PLACING:
            said = waited
            say(f"waiting for the learner since {format_duration(waited)}; {free()}")

    return wait


def _within(seconds: float) -> Callable[[float], None]:
    """Return a patience that ends after `seconds`."""

    def wait(waited: float) -> None:
        if waited > seconds:
            raise ActorError(f"no answer from the cluster for {waited:.0f} s")

    return wait
