"""The actors of a run on a cluster, as the engine sees them: which act, which are down and for how long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ....envs import EnvironmentFailed
from ...errors import trace_of
from ...processes import supervision
from ...units import format_duration
from ..engine import ActorError
from .actor_process import Header, Order
from .cluster import Cluster, Handle, Location, ProcessDied, Ref, Reply, check_version
from .restarts import BUDGET, Restarts

Stage = Literal["down", "placing", "idle", "acting"]
_LOOK = 0.25
"""Seconds between looks for actors that are silent."""
_WORDS = {"down": "to be restarted", "placing": "not placed yet", "idle": "waiting", "acting": "acting"}


@dataclass
class RemoteActor:
    """One actor: at most one process at a time, with at most one order."""

    index: int
    incarnation: int = -1
    handle: Handle = None
    location: Location | None = None
    stage: Stage = "down"
    since: float = 0.0
    """monotonic time at which the stage began"""
    again_at: float = 0.0
    """earliest time of its restart, while it is down"""
    named_at: float = 0.0
    """monotonic time at which its silence was last reported"""
    restarts: Restarts = field(default_factory=Restarts)
    data: list[Ref] = field(default_factory=list)
    """references to the shards that it is collecting"""

    def __str__(self) -> str:
        return f"actor {self.index}" + (f" ({self.location})" if self.location else "")

    def enter(self, stage: Stage) -> None:
        self.stage, self.since = stage, time.monotonic()


class Actors:
    """Starts `count` actors, gives each one order at a time, and restarts those that die.

    `start(index, incarnation)` starts a process, `say` prints a line. Unless `forgiving`, the first death
    ends the run.
    """

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        start: Callable[[int, int], Handle],
        say: Callable[[str], None],
        forgiving: bool,
    ) -> None:
        self.all = [RemoteActor(index) for index in range(count)]
        self._cluster = cluster
        self._start = start
        self._say = say
        self._forgiving = forgiving
        self._looked_at = 0.0

    @property
    def restarts(self) -> int:
        """Number of deaths so far."""
        return sum(actor.restarts.total for actor in self.all)

    def _at(self, *stages: Stage) -> list[RemoteActor]:
        return [actor for actor in self.all if actor.stage in stages]

    def alive(self) -> int:
        return len(self._at("idle", "acting"))

    def start_due(self) -> None:
        """Start those whose delay is over."""
        now = time.monotonic()
        for actor in [actor for actor in self._at("down") if actor.again_at <= now]:
            actor.incarnation += 1
            actor.handle = self._start(actor.index, actor.incarnation)
            actor.location = None
            actor.enter("placing")
            tag = ("begin", actor.index, actor.incarnation)
            self._cluster.call(actor.handle, "begin", tag=tag)

    def next_idle(self) -> int | None:
        """Return the actor that has been idle longest, if there is one."""
        idle = self._at("idle")
        return min(idle, key=lambda actor: actor.since).index if idle else None

    def is_idle(self, index: int) -> bool:
        return self.all[index].stage == "idle"

    def acting(self) -> int:
        return len(self._at("acting"))

    def order(self, index: int, order: Order, shards: int) -> None:
        """Let an idle actor collect its next unroll, which will be `shards` objects."""
        actor = self.all[index]
        actor.enter("acting")
        tag = ("collect", actor.index, actor.incarnation)
        actor.data = self._cluster.call(actor.handle, "collect", order, tag=tag, returns=1 + shards)

    def handle(self, reply: Reply) -> tuple[RemoteActor, Header, list[Ref]] | None:
        """Handle an actor's reply; return the unroll that it hands over, if any.

        Raises ActorError if an actor died once too often, or runs another deltabeast than this machine.
        """
        what, index, incarnation = reply.tag
        actor = self.all[index]
        if incarnation != actor.incarnation or actor.stage == "down":
            return None  # from an earlier incarnation
        if reply.error is not None:
            self._died(actor, reply.error)
            return None
        if what == "begin":
            check_version(reply.value)
            actor.location = reply.value
            actor.restarts.began()
            if actor.incarnation:
                self._say(f"{actor} is back")
        actor.enter("idle")
        data, actor.data = actor.data, []
        return (actor, reply.value, data) if what == "collect" else None

    def report_silent(self) -> None:
        """Say which actors have been silent for long, and what they wait for."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        for actor in self._at("placing", "acting"):
            if now - max(actor.since, actor.named_at) <= supervision.SILENCE:
                continue
            actor.named_at = now
            waited = format_duration(now - actor.since)
            if actor.stage == "acting":
                self._say(f"{actor} has handed over nothing for {waited}")
            else:
                self._say(f"{actor} waits for a place since {waited}; {self.free()}")

    def free(self) -> str:
        """Describe what the cluster has left, for messages."""
        return "free: " + ", ".join(f"{amount:g} {name}" for name, amount in self._cluster.free().items())

    def states(self, patience: Callable[[float], None]) -> list[dict[str, Any]]:
        """Return the states of all actors, which must rest, or none if they have not begun.

        Raises ActorError if one is gone.
        """
        handles = [actor.handle for actor in self.all if actor.handle is not None]
        try:
            return self._cluster.ask(handles, "state_dict", patience=patience)
        except ProcessDied as error:
            raise ActorError(f"an actor cannot be asked for its state: {error}") from error

    def stage(self) -> str:
        counts = Counter(actor.stage for actor in self.all)
        stages = ", ".join(f"{count} {_WORDS[stage]}" for stage, count in sorted(counts.items()))
        acting = self._at("acting")
        if not acting:
            return f"actors: {stages}"
        oldest = min(acting, key=lambda actor: actor.since)
        return f"actors: {stages}, {oldest} since {format_duration(time.monotonic() - oldest.since)}"

    def _died(self, actor: RemoteActor, error: Exception) -> None:
        how = "died" if isinstance(error, ProcessDied) else "failed"
        reason = str(error) if isinstance(error, ProcessDied | EnvironmentFailed) else repr(error)
        cause = error if isinstance(error, EnvironmentFailed) else error.__cause__
        if not isinstance(error, ProcessDied):
            self._cluster.kill(actor.handle)  # its state is no longer known
        delay = actor.restarts.died()
        if not self._forgiving:
            raise ActorError(f"{actor} {how}: {reason}") from cause
        if delay is None:
            times = f"{BUDGET + 1} times in a row"
            raise ActorError(f"actor {actor.index} {how} {times}, at last: {reason}") from cause
        trace = trace_of(cause) if cause else ""
        self._say(trace + "\n" * bool(trace) + f"{actor} {how}: {reason}; it is restarted in {delay:g} s")
        actor.enter("down")
        actor.again_at = time.monotonic() + delay
        actor.data = []
