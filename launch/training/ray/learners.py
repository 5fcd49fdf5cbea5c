"""The learners of a run on a cluster, as the engine sees them: their inboxes, and the update they make."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....agents import NonFiniteError
from ...units import format_duration
from ..engine import ActorError, WeightsLost
from .cluster import Cluster, Handle, Location, ObjectGone, ProcessDied, Ref, Reply, check_version
from .collective import ELSEWHERE
from .learner_process import Report
from .ledger import ShardId

_AHEAD = 2
"""Updates whose shards a learner may have or be fetching, in addition to the update in progress."""


class LearnerDied(WeightsLost):
    """A learner's process is gone: all must begin again from a checkpoint."""


@dataclass(frozen=True)
class Shard:
    """Some columns of an unroll, which wait to be learned from on the node that has their data."""

    identity: ShardId
    data: Ref
    node: str
    turn: int = 0
    """how many were handed over before it"""


@dataclass
class Inbox:
    """The shards of one learner's next updates."""

    fetching: dict[ShardId, Shard] = field(default_factory=dict)
    arrived: dict[ShardId, Shard] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fetching) + len(self.arrived)


@dataclass(frozen=True)
class Outcome:
    """The result of an update that all learners made together."""

    reports: Sequence[Report]
    learned: Sequence[ShardId]
    weights: Ref


class Learners:
    """Learners that make one update at a time together, each from `shards` shards.

    Shards are used in the order in which they arrive, so that a slow link delays only what crosses it; where
    `in_order`, in the order in which they were handed over.
    """

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        shards: int,
        start: Callable[[int], Handle],
        in_order: bool,
    ) -> None:
        self._cluster = cluster
        self._count = count
        self._shards = shards
        self._start = start
        self._in_order = in_order
        self._generation = 0
        self._handles: list[Handle] = []
        self.running = False
        """whether all have loaded a checkpoint: until then their weights are not the run's"""
        self.places: list[Location] = []
        self._inboxes: list[Inbox] = []
        self._waiting: deque[Shard] = deque()
        self._turns = itertools.count()
        self._learning: list[Shard] = []
        self._began = 0.0
        self._results: dict[int, Reply] = {}
        self._weights: Ref = None

    @property
    def busy(self) -> bool:
        """Whether an update is under way."""
        return bool(self._learning)

    def begin(self, weights: Ref, state: Ref, patience: Callable[[float], None]) -> None:
        """Start the processes with a checkpoint's weights and state. Raises LearnerDied, or ActorError."""
        self._generation += 1
        self._handles = [self._start(rank) for rank in range(self._count)]
        self._inboxes = [Inbox() for _ in self._handles]
        try:
            self.places = self._cluster.ask(self._handles, "begin", patience=patience)
            for place in self.places:
                check_version(place)
            if self._count > 1:
                (place,) = self._cluster.ask(self._handles[:1], "host", patience=patience)
                self._cluster.ask(self._handles, "meet", place, patience=patience)
            self._cluster.ask(self._handles, "load", weights, state, patience=patience)
        except ProcessDied as error:
            raise LearnerDied(f"a learner died when it began: {error}") from error
        except RuntimeError as error:
            raise ActorError(f"a learner cannot begin: {error}") from error
        self.running = True

    def state(self, patience: Callable[[float], None]) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Ask the first for weights and state, which all have alike. Raises LearnerDied if it is gone."""
        try:
            return self._cluster.ask(self._handles[:1], "state", patience=patience)[0]
        except ProcessDied as error:
            raise self._dead(0, error) from error

    def replay_states(self, patience: Callable[[float], None]) -> list[dict[str, Any]]:
        """Ask each for its replay buffer. Raises LearnerDied for the first that is gone."""
        states: list[dict[str, Any]] = []
        for rank, handle in enumerate(self._handles):
            try:
                states += self._cluster.ask([handle], "replay_state", patience=patience)
            except ProcessDied as error:
                raise self._dead(rank, error) from error
        return states

    def end(self) -> None:
        """Stop the processes; shards that they have not learned from wait again."""
        for handle in self._handles:
            self._cluster.kill(handle)
        self._handles, self.running = [], False
        taken = [
            shard for inbox in self._inboxes for shard in (*inbox.arrived.values(), *inbox.fetching.values())
        ]
        self._waiting.extendleft(reversed([*self._learning, *taken]))
        self._learning, self._inboxes, self._results = [], [], {}

    def add(self, shard: Shard) -> None:
        self._waiting.append(replace(shard, turn=next(self._turns)))

    def unlearned(self) -> int:
        """Count the shards that wait, are being fetched or have arrived, not those being learned from."""
        return len(self._waiting) + sum(len(inbox) for inbox in self._inboxes)

    def fetch(self) -> None:
        """Assign each waiting shard to the learner with the fewest, which fetches it."""
        while self._waiting and self._handles:
            rank = min(range(self._count), key=lambda rank: len(self._inboxes[rank]))
            if len(self._inboxes[rank]) >= _AHEAD * self._shards:
                return
            shard = self._waiting.popleft()
            self._inboxes[rank].fetching[shard.identity] = shard
            self._fetch(rank, shard)

    def _fetch(self, rank: int, shard: Shard) -> None:
        tag = ("fetch", self._generation, rank, shard.identity)
        handle = self._handles[rank]
        self._cluster.call(handle, "fetch", shard.identity, [shard.data], tag=tag, group="fetch")

    def begin_update(self) -> bool:
        """Begin an update if none is under way and its shards have arrived."""
        if self._learning or not self._handles:
            return False
        if self._in_order and any(inbox.fetching for inbox in self._inboxes):
            return False
        if any(len(inbox.arrived) < self._shards for inbox in self._inboxes):
            return False
        self._began, self._results = time.monotonic(), {}
        for rank, (handle, inbox) in enumerate(zip(self._handles, self._inboxes, strict=True)):
            there = list(inbox.arrived.values())
            if self._in_order:
                there.sort(key=lambda shard: shard.turn)
            chosen = [shard.identity for shard in there[: self._shards]]
            self._learning += [inbox.arrived.pop(identity) for identity in chosen]
            tag = ("update", self._generation, rank)
            (weights,) = self._cluster.call(handle, "update", chosen, tag=tag, returns=2)
            if rank == 0:
                self._weights = weights
        return True

    def handle(self, reply: Reply) -> Outcome | Shard | None:
        """Handle a learner's reply; return the update it completes, or the shard it could not fetch.

        Raises LearnerDied, NonFiniteError, or ActorError if a learner failed.
        """
        what, generation, rank, *rest = reply.tag
        if generation != self._generation or not self._handles:
            return None
        if isinstance(reply.error, ProcessDied):
            raise self._dead(rank, reply.error)
        if what == "fetch":
            return self._fetched(rank, rest[0], reply)
        self._results[rank] = reply
        return self._updated() if len(self._results) == self._count else None

    def _fetched(self, rank: int, identity: ShardId, reply: Reply) -> Shard | None:
        inbox = self._inboxes[rank]
        if isinstance(reply.error, ObjectGone):
            return inbox.fetching.pop(identity)
        if reply.error is not None:
            raise self._failed(rank, reply.error)
        if reply.value:
            inbox.arrived[identity] = inbox.fetching.pop(identity)
        else:
            self._fetch(rank, inbox.fetching[identity])
        return None

    def _updated(self) -> Outcome:
        learned, self._learning = self._learning, []
        errors = {rank: reply.error for rank, reply in self._results.items() if reply.error is not None}
        causes = [error for error in errors.values() if str(error) != ELSEWHERE]
        for error in causes:
            if isinstance(error, NonFiniteError):
                raise error
        for rank, error in errors.items():
            raise self._failed(rank, error)
        reports = [self._results[rank].value for rank in range(self._count)]
        return Outcome(reports, [shard.identity for shard in learned], self._weights)

    def _dead(self, rank: int, error: ProcessDied) -> LearnerDied:
        return LearnerDied(f"learner {rank} ({self.places[rank]}) died: {error}")

    def _failed(self, rank: int, error: Exception) -> ActorError:
        failure = ActorError(f"learner {rank} ({self.places[rank]}) failed: {error!r}")
        failure.__cause__ = error.__cause__
        return failure

    def stage(self) -> str:
        if not self._handles:
            return "learner: not running"
        now = time.monotonic()
        arrived = sum(len(inbox.arrived) for inbox in self._inboxes)
        coming = sum(len(inbox.fetching) for inbox in self._inboxes)
        what = f"learning since {format_duration(now - self._began)}" if self._learning else "waiting"
        return (
            f"learner: {what}, {arrived} unrolls there, {coming} on their way, {len(self._waiting)} to fetch"
        )
