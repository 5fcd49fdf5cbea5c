"""Sources of the learner's batches: actors in turns, or in threads of their own."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch

from ....agents import Actor, Unroll, join, split
from ..engine import ActorError, actor_failed

_PATIENCE = 30.0
"""Seconds that actor threads may take to finish their unroll when the run ends."""


def batches(unrolls: Iterator[Unroll], batch_size: int) -> Iterator[Unroll]:
    """Join or split unrolls `[T, N]` into batches `[T, batch_size]`, one trajectory per environment.

    N of each unroll must be a divisor or a multiple of `batch_size`.
    """
    waiting: list[Unroll] = []
    for unroll in unrolls:
        if unroll.num_envs >= batch_size:
            yield from split(unroll, batch_size)
            continue
        waiting.append(unroll)
        if sum(part.num_envs for part in waiting) == batch_size:
            batch = join(waiting)
            waiting = []
            yield batch


class Source(AbstractContextManager["Source"]):
    """Yields batches `[T, batch_size]`, one environment per column; leaving its context stops the actors."""

    turn = 0
    """index of the actor that collects next, where they take turns"""

    def __init__(
        self, actors: Sequence[Actor], batch_size: int, before_waiting: Callable[[], None] = lambda: None
    ) -> None:
        """`before_waiting` is called before waiting for a batch that is not there yet."""
        self.actors = actors
        self.batch_size = batch_size
        self._before_waiting = before_waiting

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[Unroll]:
        return batches(self._unrolls(), self.batch_size)

    @abstractmethod
    def _unrolls(self) -> Iterator[Unroll]:
        """Yield the actors' unrolls `[T, N]`, N environments each."""

    @abstractmethod
    def at_boundary(self) -> bool:
        """Whether a checkpoint now loses nothing: there is no partly consumed unroll."""

    def stage(self) -> str:
        """Describe what the actors are doing, for messages about what hangs."""
        return ", ".join(f"actor {index}: {actor.stopwatch.stage}" for index, actor in enumerate(self.actors))


class Lockstep(Source):
    """Actors and learner take turns in one thread: nothing competes, and actors always have the newest
    weights.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        batch_size: int,
        turn: int = 0,
        before_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(actors, batch_size, before_waiting)
        self.turn = turn % len(actors)
        self._collected = 0
        self._handed_over = 0

    def __iter__(self) -> Iterator[Unroll]:
        for batch in super().__iter__():
            self._handed_over += batch.num_steps
            yield batch

    def _unrolls(self) -> Iterator[Unroll]:
        while True:
            self._before_waiting()
            try:
                unroll = self.actors[self.turn].collect()
            except Exception as error:
                failure = actor_failed(f"actor {self.turn}", error)
                raise failure from failure.__cause__
            self._collected += unroll.num_steps
            self.turn = (self.turn + 1) % len(self.actors)
            yield unroll

    def at_boundary(self) -> bool:
        return self._handed_over == self._collected


class Threads(Source):
    """Each actor in a thread of its own, ahead of the learner by at most a bounded queue.

    The queue holds one batch, or one unroll where that is larger, so an actor is at most a queue, an unroll
    and an update behind: a slow learner stalls the actors, and neither memory nor policy lag grows. The
    batches end when `stop` is set and the queue is empty.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        batch_size: int,
        stop: threading.Event,
        on_start: Callable[[], None] = lambda: None,
        before_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Each thread calls `on_start` first. `stop` ends the batches once the queue is empty."""
        super().__init__(actors, batch_size, before_waiting)
        num_envs = sum(actor.num_envs for actor in actors)
        self._queue: queue.Queue[Unroll | ActorError] = queue.Queue(
            max(1, len(actors) * batch_size // num_envs)
        )
        self._stop = stop
        self._exited = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(index, on_start), name=f"actor-{index}", daemon=True)
            for index in range(len(actors))
        ]

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def _unrolls(self) -> Iterator[Unroll]:
        while True:
            if self._queue.empty():
                self._before_waiting()
            try:
                item = self._queue.get(timeout=0.5)
            except queue.Empty:
                if self._stop.is_set():  # an actor that hangs must not keep the run from being saved
                    return
                continue
            if isinstance(item, ActorError):
                raise item
            keep_until_read(item)
            yield item

    def _run(self, index: int, on_start: Callable[[], None]) -> None:
        try:
            on_start()
            while not self._exited.is_set():
                self._queue.put(self.actors[index].collect())
        except BaseException as error:  # whatever it is: the learner must not wait for this thread for ever
            self._queue.put(actor_failed(f"actor {index}", error))

    def at_boundary(self) -> bool:
        """Always true: unrolls in the queue are never saved; they count once learned from."""
        return True

    def __exit__(self, *_: object) -> None:
        self._exited.set()
        deadline = time.monotonic() + _PATIENCE
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    self._queue.get_nowait()  # make room for what the thread may wait to put
                thread.join(timeout=0.05)


def keep_until_read(unroll: Unroll) -> None:
    """Keep the memory of an unroll until this thread's stream has finished with it."""
    for tensor in (*unroll.tensors(), *(unroll.truncations or ())):
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
