"""The actors of a run on a cluster, as the engine sees them: who acts, who is down, who comes back when."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ...processes import supervision
from ...units import format_duration
from ..local.sources import ActorError
from .actor_process import Header, Order
from .cluster import Cluster, Handle, ProcessDied, Ref, Reply, Where
from .restarts import BUDGET, Restarts

Stage = Literal["down", "placing", "idle", "acting"]
_WORDS = {"down": "to be restarted", "placing": "not placed yet", "idle": "waiting", "acting": "acting"}


@dataclass
class Slot:
    """One actor: at most one process at a time, with at most one order."""

    index: int
    incarnation: int = -1
    handle: Handle = None
    where: Where | None = None
    stage: Stage = "down"
    since: float = 0.0
    """when the stage began"""
    again_at: float = 0.0
    """when one that is down may be started again"""
    spoke_at: float = 0.0
    restarts: Restarts = field(default_factory=Restarts)
    data: list[Ref] = field(default_factory=list)
    """what it is working on: the unrolls to come"""

    def __str__(self) -> str:
        return f"actor {self.index}" + (f" ({self.where})" if self.where else "")

    def enter(self, stage: Stage) -> None:
        self.stage, self.since = stage, time.monotonic()


class Fleet:
    """Starts `count` actors, gives them orders one at a time, and starts again those that die.

    `start(index, incarnation)` starts a process; `say` tells a person. Without `forgiving` the first death
    is the run's.
    """

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        start: Callable[[int, int], Handle],
        say: Callable[[str], None],
        forgiving: bool,
    ) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self._cluster = cluster
        self._start = start
        self._say = say
        self._forgiving = forgiving
        self._down = list(self.slots)
        self._idle: deque[Slot] = deque()

    @property
    def restarts(self) -> int:
        """Deaths in all."""
        return sum(slot.restarts.total for slot in self.slots)

    def alive(self) -> int:
        return sum(slot.stage in ("idle", "acting") for slot in self.slots)

    def start_due(self) -> None:
        """Start those whose time has come."""
        now = time.monotonic()
        for slot in [slot for slot in self._down if slot.again_at <= now]:
            self._down.remove(slot)
            slot.incarnation += 1
            slot.handle = self._start(slot.index, slot.incarnation)
            slot.where = None
            slot.enter("placing")
            tag = ("begin", slot.index, slot.incarnation)
            self._cluster.call(slot.handle, "begin", tag=tag)

    def next_idle(self) -> int | None:
        """One that has nothing to do, the longest idle first; it must be given an order."""
        while self._idle:
            slot = self._idle.popleft()
            if slot.stage == "idle":
                return slot.index
        return None

    def is_idle(self, index: int) -> bool:
        return self.slots[index].stage == "idle"

    def acting(self) -> int:
        return sum(slot.stage == "acting" for slot in self.slots)

    def order(self, index: int, order: Order, pieces: int) -> None:
        """Let an idle actor collect its next unroll, which will be `pieces` objects."""
        slot = self.slots[index]
        slot.enter("acting")
        tag = ("collect", slot.index, slot.incarnation)
        slot.data = self._cluster.call(slot.handle, "collect", order, tag=tag, returns=1 + pieces)

    def take(self, reply: Reply) -> tuple[Slot, Header, list[Ref]] | None:
        """The unroll of which a reply tells, if any. Raises ActorError if an actor died once too often."""
        what, index, incarnation = reply.tag
        slot = self.slots[index]
        if incarnation != slot.incarnation or slot.stage == "down":
            return None  # of a process that has been given up
        if reply.error is not None:
            self._died(slot, reply.error)
            return None
        if what == "begin":
            slot.where = reply.value
            slot.restarts.began()
            if slot.incarnation:
                self._say(f"{slot} is back")
        slot.enter("idle")
        self._idle.append(slot)
        data, slot.data = slot.data, []
        return (slot, reply.value, data) if what == "collect" else None

    def speak(self) -> None:
        """Say which actors have been silent for long, and what they wait for."""
        now = time.monotonic()
        for slot in self.slots:
            silent = now - max(slot.since, slot.spoke_at) > supervision.SILENCE
            if not silent or slot.stage not in ("placing", "acting"):
                continue
            slot.spoke_at = now
            waited = format_duration(now - slot.since)
            if slot.stage == "acting":
                self._say(f"{slot} has handed over nothing for {waited}")
            else:
                self._say(f"{slot} waits for a place since {waited}; {self.free()}")

    def free(self) -> str:
        """What the cluster has left."""
        return "free: " + ", ".join(f"{amount:g} {name}" for name, amount in self._cluster.free().items())

    def states(self, patience: Callable[[float], None]) -> list[dict[str, Any]]:
        """Of all actors, which must rest; none if they have not begun. Raises ActorError if one is gone."""
        handles = [slot.handle for slot in self.slots if slot.handle is not None]
        try:
            return self._cluster.ask(handles, "state_dict", patience=patience)
        except ProcessDied as error:
            raise ActorError(f"an actor cannot be asked for its state: {error}") from error

    def stage(self) -> str:
        counts = Counter(slot.stage for slot in self.slots)
        told = ", ".join(f"{count} {_WORDS[stage]}" for stage, count in sorted(counts.items()))
        acting = [slot for slot in self.slots if slot.stage == "acting"]
        if not acting:
            return f"actors: {told}"
        oldest = min(acting, key=lambda slot: slot.since)
        return f"actors: {told}, {oldest} since {format_duration(time.monotonic() - oldest.since)}"

    def _died(self, slot: Slot, error: Exception) -> None:
        how = "died" if isinstance(error, ProcessDied) else "failed"
        told = str(error) if isinstance(error, ProcessDied) else repr(error)
        if not isinstance(error, ProcessDied):
            self._cluster.kill(slot.handle)  # what it would do next nobody knows
        delay = slot.restarts.died()
        if not self._forgiving:
            raise ActorError(f"{slot} {how}: {told}") from error.__cause__
        if delay is None:
            times = f"{BUDGET + 1} times in a row"
            raise ActorError(f"actor {slot.index} {how} {times}, at last: {told}") from error.__cause__
        trace = f"{error.__cause__}\n" if error.__cause__ is not None else ""
        self._say(f"{trace}{slot} {how}: {told}; it is restarted in {delay:g} s")
        slot.enter("down")
        slot.again_at = time.monotonic() + delay
        slot.data = []
        self._down.append(slot)
