"""Processes that step environments, each a part of them, as `ProcessEnvs` tells them to."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from ..output import warnings_in_lines
from .child import Child, RemoteTraceback, receive_file, send
from .env_arrays import EPISODE_INFOS, Arrays, Described, Layout

STEP, RESET = b"s", b"r"
MASKS, LAST, MESSAGE = 1, 2, 4
"""What else an answer has, added up: action masks, last observations, a message in its pipe."""
WORKING = 255
"""The status of a process that has not answered yet."""
_MOST_BYTES = 1 << 15
_PATIENCE = 5.0
"""Seconds that processes may take to end when they are no longer needed."""

Answer = tuple[bool, Any]
"""Whether it is an error, with its traceback, and what was sent."""


class EnvServers:
    """P processes that make G groups of N environments as soon as they have begun; `process_envs` waits for
    them.

    Each process has a part of every group and steps one group's after another's, as orders come. A core with
    a process for each group would switch between them, with caches full of the other's games.
    """

    def __init__(
        self,
        make: Callable[..., VectorEnv[Any, Any, Any]],
        num_envs: int,
        processes: int,
        groups: int = 1,
        cpus: Sequence[int] | None = None,
    ) -> None:
        """Start the processes.

        Args:
            make: `make(num_envs=n)` makes n environments that keep the contract of envs/README.md and are
                seeded one by one. A function of a module, or a `partial` of one; what that imports, each
                process does.
            num_envs: N.
            processes: P, at most N.
            groups: G.
            cpus: a core for each process; None leaves that to the system.

        Raises OSError where no more processes or files are to be had.
        """
        bounds = np.linspace(0, num_envs, processes + 1).round().astype(int).tolist()
        self.num_envs, self.groups, self.open = num_envs, groups, True
        self.rows = [slice(begin, end) for begin, end in pairwise(bounds)]
        self.children: list[Child] = []
        try:
            with _one_thread_each():
                for index, rows in enumerate(self.rows):
                    name = _numbers(rows) + (" of each group" if groups > 1 else "")
                    cpu = cpus and cpus[index]
                    part = Part(rows, num_envs, index, processes)
                    self.children.append(Child(name, _serve, make, part, groups, cpu))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes; again, if need be."""
        self.open = False
        for child in self.children:
            child.close()
        end = time.monotonic() + _PATIENCE
        for child in self.children:
            child.end(max(0.01, end - time.monotonic()))


def unless_failed(answers: Sequence[Answer]) -> list[Any]:
    """Return what the processes sent. Raises the first error among it."""
    for failed, what in answers:
        if failed:
            error, trace = what
            raise error from RemoteTraceback(trace)
    return [what for _, what in answers]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes that begin within compute with one thread: NumPy's library starts one a core in each of
    them, P times P, as soon as it is imported."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _warnings_of_one(index: int) -> Iterator[None]:
    """Let the first of all processes show warnings: the others' environments are of the same code."""
    with warnings_in_lines() if index == 0 else warnings.catch_warnings():
        if index > 0:
            warnings.simplefilter("ignore")
        yield


def _numbers(rows: slice) -> str:
    last = rows.stop - 1
    return f"environment {last}" if rows.start == last else f"environments {rows.start} to {last}"


class Part(NamedTuple):
    """Which of each group's environments are those of one process."""

    rows: slice
    num_envs: int
    """of a group"""
    process: int
    """number of the process"""
    processes: int


def _serve(
    connection: Connection,
    make: Callable[..., VectorEnv[Any, Any, Any]],
    part: Part,
    groups: int,
    cpu: int | None,
) -> None:
    """Run a process: make its environments of each group, and step them until the pipes are closed."""
    faulthandler.enable(file=2)
    if cpu is not None:
        with suppress(OSError):  # it was taken from this process since
            os.sched_setaffinity(0, {cpu})
    with (
        _warnings_of_one(part.process),
        suppress(EOFError, ConnectionError),  # the other side is gone
        ExitStack() as stack,
    ):
        try:
            num_envs = part.rows.stop - part.rows.start
            envs = [stack.enter_context(closing(make(num_envs=num_envs))) for _ in range(groups)]
        except Exception as error:
            send(connection, (True, _portable(error)))
            return
        described = Described.of(envs[0])
        send(connection, (False, described))
        _work([_Group(env, connection, described, part) for env in envs])


class _Group:
    """A group's environments in this process, and the files by which it is told what to do."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], connection: Connection, described: Described, part: Part
    ) -> None:
        file, messages, *self._sleepers, self._answers = (receive_file(connection) for _ in range(5))
        self._env, self._messages, self._turn = env, Connection(messages), 0
        arrays = Layout(described, part.num_envs, part.processes).arrays(file)
        os.close(file)
        self._status: npt.NDArray[np.uint8] = arrays.pop("status")[part.process : part.process + 1]
        self._own = {name: array[part.rows] for name, array in arrays.items()}

    @property
    def sleeper(self) -> int:
        """The file that has the next order."""
        return self._sleepers[self._turn]

    def carry_out(self) -> bool:
        """Wait for an order and carry it out; False if none comes any more."""
        order = os.read(self.sleeper, 1)
        self._turn = 1 - self._turn
        if not order:
            return False
        own = self._own
        try:
            infos = _step(self._env, own) if order == STEP else _reset(self._env, own, *self._messages.recv())
            for name, value in infos.items():
                if name in own:
                    own[name][...] = value
            has = MASKS * ("action_mask" in infos) + LAST * ("final_obs" in infos)
            message = (False, infos["notes"]) if "notes" in infos else None
        except Exception as error:
            has, message = 0, (True, _portable(error))
        self._status[0] = has + MESSAGE * (message is not None)
        os.write(self._answers, order)
        if message is not None:  # only now: it may wait for a reader
            send(self._messages, message)
        return True


def _work(groups: Sequence[_Group]) -> None:
    """Carry out the groups' orders as they come."""
    poll, waiting = select.poll(), {group.sleeper: group for group in groups}
    for sleeper in waiting:
        poll.register(sleeper, select.POLLIN)
    while True:
        for sleeper, _ in poll.poll():
            group = waiting.pop(sleeper)
            # What is left in its pipe is for other processes.
            poll.unregister(sleeper)
            if not group.carry_out():
                return
            waiting[group.sleeper] = group
            poll.register(group.sleeper, select.POLLIN)


def _step(env: VectorEnv[Any, Any, Any], own: Arrays) -> dict[str, Any]:
    shown = env.step(own["actions"])
    for name, value in zip(("observations", "rewards", "terminated", "truncated"), shown, strict=False):
        own[name][...] = value
    return shown[4]


def _reset(
    env: VectorEnv[Any, Any, Any], own: Arrays, seeds: list[int] | None, options: dict[str, Any] | None
) -> dict[str, Any]:
    """Reset those of the environments that are asked for, if any."""
    if options is not None and "reset_mask" in options and not options["reset_mask"].any():
        return dict.fromkeys(EPISODE_INFOS, 0)  # nothing has ended
    # Gymnasium declares one seed for all; environments of make_vector_env take one each.
    own["observations"][...], infos = env.reset(seed=seeds, options=options)  # type: ignore[arg-type]
    return infos


def _portable(error: Exception) -> tuple[Exception, str]:
    """Return an error that another process can raise, and its traceback, both short enough to be sent before
    anyone reads them: who reads may wait for another group of this process first."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        whole = pickle.dumps(error)
        pickle.loads(whole)
        portable = len(whole) <= _MOST_BYTES
    except Exception:
        portable = False
    return error if portable else RuntimeError(repr(error)[:_MOST_BYTES]), trace[-_MOST_BYTES:]
