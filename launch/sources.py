"""Where the learner's batches come from: actors in turns, or in threads of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from ..agents import Actor, Unroll, join, split


class ActorError(RuntimeError):
    """An actor raised; its exception is the cause."""


class Source(Protocol):
    """Yields batches of exactly `batch_size` unrolls; leaving its context stops the actors."""

    def __iter__(self) -> Iterator[Unroll]: ...
    def stage(self) -> str:
        """What the actors are doing, for messages about what hangs."""
        ...


def batches(unrolls: Iterator[Unroll], batch_size: int) -> Iterator[Unroll]:
    """Put unrolls together, or cut them, into batches of `batch_size` columns.

    Each unroll's columns must be a divisor or a multiple of `batch_size`.
    """
    waiting: list[Unroll] = []
    for unroll in unrolls:
        if unroll.columns() >= batch_size:
            yield from split(unroll, batch_size)
            continue
        waiting.append(unroll)
        if sum(part.columns() for part in waiting) == batch_size:
            yield join(waiting)
            waiting = []


class Lockstep(AbstractContextManager["Lockstep"]):
    """Actors and learner take turns in one thread: nothing competes, and the policy lag is zero."""

    def __init__(self, actors: Sequence[Actor], batch_size: int) -> None:
        self.actors = actors
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Unroll]:
        return batches(self._unrolls(), self.batch_size)

    def _unrolls(self) -> Iterator[Unroll]:
        while True:
            for index, actor in enumerate(self.actors):
                try:
                    unroll = actor.collect()
                except Exception as error:
                    raise ActorError(f"actor {index} failed: {error!r}") from error
                yield unroll

    def stage(self) -> str:
        return f"actor: {self.actors[0].stopwatch.stage}"

    def __exit__(self, *_: object) -> None:
        pass


class Threads(AbstractContextManager["Threads"]):
    """Each actor in a thread of its own, ahead of the learner by at most a bounded queue.

    The queue holds one batch, so an actor is at most a queue, an unroll and an update behind: a slow
    learner stalls the actors, and neither memory nor policy lag grows.
    """

    def __init__(
        self, actors: Sequence[Actor], batch_size: int, on_start: Callable[[], None] = lambda: None
    ) -> None:
        self.actors = actors
        self.batch_size = batch_size
        columns = sum(actor.num_envs for actor in actors)
        self._queue: queue.Queue[Unroll | ActorError] = queue.Queue(
            max(1, len(actors) * batch_size // columns)
        )
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(index, on_start), name=f"actor-{index}", daemon=True)
            for index in range(len(actors))
        ]

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __iter__(self) -> Iterator[Unroll]:
        return batches(self._unrolls(), self.batch_size)

    def _unrolls(self) -> Iterator[Unroll]:
        while True:
            item = self._queue.get()
            if isinstance(item, ActorError):
                raise item
            yield item

    def _run(self, index: int, on_start: Callable[[], None]) -> None:
        item: Unroll | ActorError
        on_start()
        while not self._stop.is_set():
            try:
                item = self.actors[index].collect()
            except Exception as error:
                item = ActorError(f"actor {index} failed: {error!r}")
                item.__cause__ = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, ActorError):
                return

    def stage(self) -> str:
        return ", ".join(f"actor {i}: {actor.stopwatch.stage}" for i, actor in enumerate(self.actors))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30.0)
