"""The Ray engine: one learner, or several, and any number of actors, on any number of machines.

This process holds the run's files and decides who does what next. Unrolls never come here: what is passed on
are references to them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from typing import Any

import torch
from rich.console import Console

from ....agents import Agent, Learner, load_latest
from ....agents.stopwatch import Stopwatch
from ...config import TrainConfig
from ...errors import UsageError
from ...processes.machine import autocast_dtype
from ...units import format_duration
from ..local.sources import ActorError
from ..local.workers import make_env
from ..plan import agent_spec, learner_config, left_out_notes
from ..progress import Window
from ..randomness import rng_states
from ..run import Run, Update
from .actor_process import ActorProcess, Header, Order
from .actors import Fleet, Slot
from .cluster import Cluster, Handle, Ref, Reply
from .flat_weights import flatten, unflatten
from .layout import actor_seed, check_cluster, check_resources, layout, learner_device
from .learner_process import FETCHERS, LearnerProcess
from .learners import LearnerDied, Learners, Outcome, Piece
from .ledger import COUNTS, Identity, Ledger
from .restarts import Restarts

_LOOK_AROUND = 0.25
"""Seconds after which the loop looks around though no reply came."""
_PLACING = 15.0
"""Seconds that starting may take before a line says what it waits for."""
_JOINING = 60.0
"""Seconds in which the machines of a cluster that is starting may join it."""
_RESCUE = 60.0
"""Seconds that learner and actors have to answer when a checkpoint needs them."""


class ClusterTrainer(Run):
    """A run on a Ray cluster."""

    def __init__(self, config: TrainConfig, stack: ExitStack, console: Console | None = None) -> None:
        try:
            super().__init__(config)
            check_cluster(config)
            self.layout = layout(config)
            with closing(make_env(config, 1)) as env:
                spec, left_out = agent_spec(config, env), left_out_notes(env)
            self.agent = Agent(spec)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        self.cluster = stack.enter_context(Cluster(config.ray_address))
        self.device = self._room(console or Console())

        state, notes = self.find(spec, stack)
        self.agent.autocast_dtype = autocast_dtype(config.precision, torch.device("cpu"), spec.stem)
        self.ledger = Ledger()
        self._load(state)
        self._actor_states = self._states_to_resume(state)
        self._turn = 0 if state is None else state.get("turn", 0)
        self.learner_restarts = Restarts()
        self.learners = Learners(
            self.cluster,
            config.num_learners,
            self.layout.pieces_per_update,
            self._start_learner,
            config.deterministic,
        )
        self.fleet = Fleet(
            self.cluster, config.num_actors, self._start_actor, self._say, not config.deterministic
        )
        self.watches = [Stopwatch() for _ in range(config.num_actors)]
        self._delivered: Counter[int] = Counter()
        """agent steps of each actor since the last row"""
        self._bytes = 0
        self._row_at = time.monotonic()
        self.begin(state is not None, left_out + notes, stack, console)

    def _room(self, console: Console) -> torch.device:
        """The learners' device, once there is room for all. Raises UsageError if there will be none."""
        config, end = self.config, time.monotonic() + (_JOINING if self.cluster.is_elsewhere else 0.0)
        told = ""
        while True:
            total = self.cluster.total()
            try:
                device = learner_device(config, total)
                check_resources(config, device, total, self.cluster.largest_node())
                return torch.device(device)
            except ValueError as error:
                if time.monotonic() >= end:
                    raise UsageError(str(error)) from error
                if not told:
                    console.print(
                        f"waiting for machines that may join: {error}", soft_wrap=True, markup=False
                    )
            time.sleep(0.5)

    def _load(self, state: Mapping[str, Any] | None) -> None:
        """Take over a checkpoint's numbers; `agent` has its weights."""
        if state is None:
            learner = Learner(self.agent, learner_config(self.config, self.total_steps))
            state = {"learner": learner.state_dict(), **rng_states(torch.device("cpu"))}
        names = ("learner", "torch_rng", "cuda_rng")
        self._learner_state = {name: state[name] for name in names if name in state}
        self._steps, self._version = state["learner"]["steps"], state["learner"]["version"]
        self._saved_counts = dict(state.get("unrolls", dict.fromkeys(COUNTS, 0)))

    def _states_to_resume(self, state: Mapping[str, Any] | None) -> list[Mapping[str, Any]] | None:
        """Of the actors, where `--deterministic` brings them back. Raises UsageError if that cannot be."""
        if state is None:
            return None
        self.ledger.counts.update(self._saved_counts)
        if not self.config.deterministic or state["actors"] is None:
            return None
        saved: list[Mapping[str, Any]] = state["actors"]
        if len(saved) != self.config.num_actors or any("env" not in actor for actor in saved):
            raise UsageError(
                f"cannot go on with {self.run_dir} under --deterministic: it was trained without it, or with "
                "another --num-actors; resume without --deterministic, and episodes begin anew"
            )
        return saved

    def _start_learner(self, rank: int) -> Handle:
        config = self.config
        return self.cluster.start(
            LearnerProcess,
            config,
            self.agent.spec,
            self.device.type,
            self.total_steps,
            rank,
            config.num_learners,
            cpus=config.learner_cpus,
            gpus=1.0 if self.device.type == "cuda" else 0.0,
            groups={"fetch": FETCHERS},
        )

    def _start_actor(self, index: int, incarnation: int) -> Handle:
        config = self.config
        state = self._actor_states[index] if self._actor_states is not None else None
        start_step = 0 if config.deterministic else self.start_step
        return self.cluster.start(
            ActorProcess,
            config,
            self.agent.spec,
            actor_seed(config.seed, index, incarnation, start_step),
            self.layout.columns,
            state,
            cpus=config.actor_cpus,
            gpus=config.actor_gpus,
            spread=True,
        )

    def _say(self, text: str) -> None:
        self.panel.message(text)

    @property
    def steps(self) -> int:
        return self._steps

    def working(self) -> AbstractContextManager[object]:
        return nullcontext()  # what runs on the cluster ends with the connection to it

    def updates(self) -> Iterator[Update]:
        with suppress(_Stopped):
            self._begin_learning()
            yield from self._updates_without_end()

    def _updates_without_end(self) -> Iterator[Update]:
        looked = time.monotonic()
        while not (self.stop.is_set() and self.at_boundary()):
            self.fleet.start_due()
            self._give_orders()
            self.learners.bring()
            self.learners.begin_update()
            if time.monotonic() - looked > _LOOK_AROUND:
                looked = time.monotonic()
                self.fleet.speak()
            reply = self.cluster.next_reply(_LOOK_AROUND)
            if reply is None:
                continue
            try:
                update = self._take(reply)
            except LearnerDied as death:
                self._go_back(death)
                continue
            if update is None:
                continue
            ends = self.stop.is_set() or self._steps >= self.total_steps
            if not (ends or self.checkpoint_is_due()):
                self.learners.begin_update()  # it need not wait until this one is written down
            yield update

    def _give_orders(self) -> None:
        """Let actors act as long as the learners have not more before them than the next two updates."""
        needed = self.layout.pieces_per_update * self.config.num_learners
        order = Order(self._version, [self._weights])
        pieces = self.layout.pieces_per_unroll
        if self.config.deterministic:  # in turns, and each with the newest weights
            rests = not self.learners.busy and not self.fleet.acting()
            if rests and self.learners.unlearned() < needed and self.fleet.is_idle(self._turn):
                self.fleet.order(self._turn, order, pieces)
                self._turn = (self._turn + 1) % self.config.num_actors
            return
        while self.learners.unlearned() < 2 * needed and (index := self.fleet.next_idle()) is not None:
            self.fleet.order(index, order, pieces)

    def _take(self, reply: Reply) -> Update | None:
        """Heed what a process answered; gives the update if one is complete."""
        if reply.tag[0] in ("begin", "collect"):
            nobody = not self.fleet.alive()
            handed_over = self.fleet.take(reply)
            if nobody and self.fleet.alive():
                self.begin_measuring()  # the time in which nobody acted is no part of the speed
            if handed_over is not None:
                self._deliver(*handed_over)
            return None
        result = self.learners.take(reply)
        if isinstance(result, Piece):
            self._bury(result)
        return self._updated(result) if isinstance(result, Outcome) else None

    def _deliver(self, slot: Slot, header: Header, data: Sequence[Ref]) -> None:
        """An actor hands over an unroll: its data stay where they are."""
        assert slot.where is not None
        for offset, ref in enumerate(data):
            identity = Identity(slot.index, slot.incarnation, header.sequence + offset)
            if self.ledger.accept(identity):
                self.learners.add(Piece(identity, ref, slot.where.node))
        for stage, seconds in header.seconds.items():
            self.watches[slot.index].seconds[stage] += seconds
        self._delivered[slot.index] += header.num_steps
        self._bytes += header.nbytes

    def _bury(self, piece: Piece) -> None:
        who = f"an unroll of actor {piece.identity.actor} is gone with node {piece.node}"
        if self.config.deterministic:
            raise ActorError(who)
        self.ledger.bury([piece.identity])
        self._say(f"{who}: it was not at the learner yet")

    def _updated(self, outcome: Outcome) -> Update:
        first = outcome.reports[0]
        self.ledger.learn(outcome.learned)
        self._steps, self._version, self._weights = first.steps, first.version, outcome.weights
        self.stopwatch.seconds["learning"] += first.seconds
        return Update(first.metrics, [report.episodes for report in outcome.reports])

    def at_boundary(self) -> bool:
        whole = not self.config.deterministic or not (self.learners.unlearned() or self.fleet.acting())
        return whole and not self.learners.busy

    def _begin_learning(self) -> None:
        """Start the learners with what this process has, from the last checkpoint if they die at once."""
        try:
            self._weights = self.cluster.put(flatten(self.agent))
            self.learners.begin(self._weights, self.cluster.put(self._learner_state), self._patience())
        except LearnerDied as death:
            self._go_back(death)
        self.learner_restarts.began()

    def _patience(self) -> Callable[[float], None]:
        """For what is not placed yet."""
        said = 0.0

        def wait(waited: float) -> None:
            nonlocal said
            if self.stop.is_set():
                raise _Stopped
            if waited - said > _PLACING:
                said = waited
                self._say(f"waiting for the learner since {format_duration(waited)}; {self.fleet.free()}")

        return wait

    def _go_back(self, death: LearnerDied) -> None:
        """Begin again from the last checkpoint; actors and what they have collected stay.

        Raises ActorError if the run must end instead: with what that checkpoint holds.
        """
        delay = self.learner_restarts.died()
        self.learners.end()
        found = load_latest(self.run_dir, trust_core=self.config.core)
        assert found is not None, "a run begins with a checkpoint"
        self.agent, state, checkpoint = found
        self._load(state)
        self.ledger.roll_back(self._saved_counts)
        self.roll_back(state)
        if self.config.deterministic or delay is None:
            raise ActorError(f"{death}; run the same command to go on") from death
        self._say(f"{death}; it begins again from step {checkpoint.step} in {delay:g} s")
        if self.stop.wait(delay):
            raise _Stopped
        self._begin_learning()

    def _save(self, milestone: bool = False, actors: bool = True) -> None:
        try:
            super()._save(milestone, actors)
        except LearnerDied as death:
            with suppress(_Stopped):
                self._go_back(death)

    def snapshot(self, actors: bool) -> dict[str, Any]:
        if self.learners.running:
            self._finish_update()
            weights, self._learner_state = self.learners.state(_within(_RESCUE))
            unflatten(self.agent, weights)
        states = None
        if actors and self.config.deterministic:
            states = self.fleet.states(_within(_RESCUE)) or self._actor_states
        return {
            **self._learner_state,
            "actors": states,
            "turn": self._turn if actors else 0,
            "unrolls": dict(self.ledger.counts),
        }

    def _finish_update(self) -> None:
        """What has begun belongs to the weights that are about to be saved."""
        patience, start = _within(_RESCUE), time.monotonic()
        while self.learners.busy:
            patience(time.monotonic() - start)
            reply = self.cluster.next_reply(_LOOK_AROUND)
            if reply is None or reply.tag[0] in ("begin", "collect"):
                continue
            update = self._take(reply)
            for episodes in update.episodes if update is not None else ():
                self.scores.add(episodes)

    def new_window(self) -> Window:
        return Window(self.stopwatch, self.watches, in_turns=self.config.deterministic)

    def row(self) -> dict[str, float]:
        """Speeds of actors and nodes since the last row, and what became of all unrolls."""
        now = time.monotonic()
        seconds, self._row_at = now - self._row_at, now
        steps = sum(self._delivered.values())
        nodes: Counter[str] = Counter()
        for slot in self.fleet.slots:
            if slot.where is not None:
                nodes[slot.where.node] += self._delivered[slot.index]
        row: dict[str, float] = {"actors": self.fleet.alive(), "actor_restarts": self.fleet.restarts}
        row |= {"learner_restarts": self.learner_restarts.total}
        row |= {f"unrolls_{how}": count for how, count in self.ledger.counts.items()}
        if steps:
            row["bytes_per_step"] = self._bytes / steps
        row |= {f"nodes/{node}/sps": count / seconds for node, count in nodes.items()}
        row |= {f"actors/{s.index}/sps": self._delivered[s.index] / seconds for s in self.fleet.slots}
        self._delivered.clear()
        self._bytes = 0
        return row

    def stages(self) -> str:
        return f"{self.learners.stage()}; {self.fleet.stage()}"


class _Stopped(Exception):
    """The run was asked to stop while it waited for something else than an update."""


def _within(seconds: float) -> Callable[[float], None]:
    def wait(waited: float) -> None:
        if waited > seconds:
            raise ActorError(f"no answer from the cluster for {waited:.0f} s")

    return wait
