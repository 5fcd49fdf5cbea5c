"""The learners of a run on a cluster, as the engine sees them: what they have before them, their update."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....agents import NonFiniteError
from ...units import format_duration
from ..local.sources import ActorError
from .cluster import Cluster, Handle, ObjectGone, ProcessDied, Ref, Reply, Where
from .collective import ELSEWHERE
from .learner_process import Report
from .ledger import Identity

_AHEAD = 2
"""Updates whose unrolls may be at a learner or on their way, the one being learned from left out."""


class LearnerDied(ActorError):
    """A learner's process is gone: all must begin again from a checkpoint."""


@dataclass(frozen=True)
class Piece:
    """An unroll that waits to be learned from."""

    identity: Identity
    data: Ref
    node: str


@dataclass
class Desk:
    """What one learner has before it."""

    fetching: dict[Identity, Piece] = field(default_factory=dict)
    arrived: dict[Identity, Piece] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fetching) + len(self.arrived)


@dataclass(frozen=True)
class Outcome:
    """What came of an update."""

    reports: Sequence[Report]
    learned: Sequence[Identity]
    weights: Ref


class Learners:
    """Learners that make one update at a time together, each from `pieces` unrolls.

    Unrolls are used in the order in which they arrive, so that a slow way holds up only what takes it; where
    `in_order`, in the order in which they were handed over.
    """

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        pieces: int,
        start: Callable[[int], Handle],
        in_order: bool,
    ) -> None:
        self._cluster = cluster
        self._count = count
        self._pieces = pieces
        self._start = start
        self._in_order = in_order
        self._generation = 0
        self._handles: list[Handle] = []
        self.running = False
        """whether all have a checkpoint's weights and state: before, what they have is not the run's"""
        self.places: list[Where] = []
        self._desks: list[Desk] = []
        self._waiting: deque[Piece] = deque()
        self._learning: list[Piece] = []
        self._began = 0.0
        self._results: dict[int, Reply] = {}
        self._weights: Ref = None

    @property
    def busy(self) -> bool:
        """Whether an update is being made."""
        return bool(self._learning)

    def begin(self, weights: Ref, state: Ref, patience: Callable[[float], None]) -> None:
        """Start the processes with a checkpoint's weights and state. Raises LearnerDied, or ActorError."""
        self._generation += 1
        self._handles = [self._start(rank) for rank in range(self._count)]
        self._desks = [Desk() for _ in self._handles]
        try:
            self.places = self._cluster.ask(self._handles, "begin", patience=patience)
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
        """Of the first, all being the same. Raises LearnerDied if it is gone."""
        try:
            return self._cluster.ask(self._handles[:1], "state", patience=patience)[0]
        except ProcessDied as error:
            raise self._dead(0, error) from error

    def end(self) -> None:
        """Stop the processes; what they have not learned from waits again."""
        for handle in self._handles:
            self._cluster.kill(handle)
        self._handles, self.running = [], False
        taken = [piece for desk in self._desks for piece in (*desk.arrived.values(), *desk.fetching.values())]
        self._waiting.extendleft(reversed([*self._learning, *taken]))
        self._learning, self._desks, self._results = [], [], {}

    def add(self, piece: Piece) -> None:
        self._waiting.append(piece)

    def unlearned(self) -> int:
        """Unrolls that wait, are on their way, or have arrived; not those being learned from."""
        return len(self._waiting) + sum(len(desk) for desk in self._desks)

    def bring(self) -> None:
        """Let the learners fetch what they will need next: in turn, but who lost some comes first."""
        while self._waiting and self._handles:
            rank = min(range(self._count), key=lambda rank: len(self._desks[rank]))
            if len(self._desks[rank]) >= _AHEAD * self._pieces:
                return
            piece = self._waiting.popleft()
            self._desks[rank].fetching[piece.identity] = piece
            self._fetch(rank, piece)

    def _fetch(self, rank: int, piece: Piece) -> None:
        tag = ("fetch", self._generation, rank, piece.identity)
        handle = self._handles[rank]
        self._cluster.call(handle, "fetch", piece.identity, [piece.data], tag=tag, group="fetch")

    def begin_update(self) -> bool:
        """Begin one if none is being made and what it needs has arrived."""
        if self._learning or not self._handles:
            return False
        if self._in_order and any(desk.fetching for desk in self._desks):
            return False
        if any(len(desk.arrived) < self._pieces for desk in self._desks):
            return False
        self._began, self._results = time.monotonic(), {}
        for rank, (handle, desk) in enumerate(zip(self._handles, self._desks, strict=True)):
            chosen = (
                sorted(desk.arrived)[: self._pieces] if self._in_order else list(desk.arrived)[: self._pieces]
            )
            self._learning += [desk.arrived.pop(identity) for identity in chosen]
            tag = ("update", self._generation, rank)
            (weights,) = self._cluster.call(handle, "update", chosen, tag=tag, returns=2)
            if rank == 0:
                self._weights = weights
        return True

    def take(self, reply: Reply) -> Outcome | Piece | None:
        """What a reply tells: an update, or an unroll that will never come.

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

    def _fetched(self, rank: int, identity: Identity, reply: Reply) -> Piece | None:
        desk = self._desks[rank]
        if isinstance(reply.error, ObjectGone):
            return desk.fetching.pop(identity)
        if reply.error is not None:
            raise self._failed(rank, reply.error)
        if reply.value:
            desk.arrived[identity] = desk.fetching.pop(identity)
        else:
            self._fetch(rank, desk.fetching[identity])
        return None

    def _updated(self) -> Outcome:
        learned, self._learning = self._learning, []
        errors = {rank: reply.error for rank, reply in self._results.items() if reply.error is not None}
        told = [error for error in errors.values() if str(error) != ELSEWHERE]
        for error in told:
            if isinstance(error, NonFiniteError):
                raise error
        for rank, error in errors.items():
            raise self._failed(rank, error)
        reports = [self._results[rank].value for rank in range(self._count)]
        return Outcome(reports, [piece.identity for piece in learned], self._weights)

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
        arrived = sum(len(desk.arrived) for desk in self._desks)
        coming = sum(len(desk.fetching) for desk in self._desks)
        what = f"learning since {format_duration(now - self._began)}" if self._learning else "waiting"
        return (
            f"learner: {what}, {arrived} unrolls there, {coming} on their way, {len(self._waiting)} to fetch"
        )
