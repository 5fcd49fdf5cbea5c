"""A vector environment whose environments are stepped in processes beside this one.

What they show lies in memory that all see; for a step this process writes once and waits once, however many
processes there are. The games are those that one process would play, bit for bit.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import struct
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from ...envs.checks import check_actions, environment_seeds, rows_to_reset
from ..output import warnings_in_lines
from .child import Child, ChildDied, RemoteTraceback, receive_file, send
from .env_arrays import EPISODE_INFOS, Arrays, Described, Layout

Flags = npt.NDArray[np.bool_]
Observations = npt.NDArray[Any]

_LOOK_SECONDS = 1
"""The death of a process is noticed after this time at most."""
_PATIENCE = 5.0
"""Seconds that processes may take to end when they are no longer needed."""

_Answer = tuple[bool, Any]
"""Whether it is an error, with its traceback, and what was sent."""
_STEP, _RESET = b"s", b"r"
_MASKS, _LAST, _MESSAGE = 1, 2, 4
"""What else a process's answer has, added up: action masks, last observations, a message in its pipe."""


class ProcessEnvs(VectorEnv[Observations, npt.NDArray[np.int64], npt.NDArray[Any]]):
    """N environments in P processes, which step them at the same time.

    A step takes as long as the slowest process: each has N / P environments, rounded up or down.
    """

    def __init__(
        self,
        make: Callable[..., VectorEnv[Any, Any, Any]],
        num_envs: int,
        processes: int,
        of: str = "",
        cpus: Sequence[int] | None = None,
        copy: bool = True,
    ) -> None:
        """Start the processes and wait until their environments are made.

        Args:
            make: `make(num_envs=n)` makes n environments that keep the contract of envs/README.md and are
                seeded one by one. A function of a module, or a `partial` of one; what that imports, each
                process does.
            num_envs: N.
            processes: P, at most N.
            of: whose environments they are, for messages.
            cpus: a core for each process; None leaves that to the system.
            copy: whether observations are copies. Others are overwritten by the next step.

        Raises what `make` raises, ChildDied for a process that died, OSError where there is no memory.
        """
        bounds = np.linspace(0, num_envs, processes + 1).round().astype(int).tolist()
        self._rows = [slice(begin, end) for begin, end in pairwise(bounds)]
        self._copy, self._open, self._turn, self._under_way = copy, True, 0, False
        self._masks: Flags | None = None
        self._noted: set[str] = set()
        self._children: list[Child] = []
        self._wakers: list[Any] = []
        self._answers, theirs = socket.socketpair()
        timeout = struct.pack("ll", _LOOK_SECONDS, 0)
        self._answers.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        try:
            with closing(theirs):
                self._start(make, num_envs, of, cpus, theirs.fileno())
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        make: Callable[..., VectorEnv[Any, Any, Any]],
        num_envs: int,
        of: str,
        cpus: Sequence[int] | None,
        answers: int,
    ) -> None:
        with _one_thread_each():
            for index, rows in enumerate(self._rows):
                name = _numbers(rows) + (of and f" of {of}")
                self._children.append(
                    Child(name, _serve, make, rows, num_envs, index, len(self._rows), cpus and cpus[index])
                )
        described: Described = _unless_failed(self._receive(range(len(self._children))))[0]
        self._describe(described, num_envs)
        layout = Layout(described, num_envs, len(self._children))
        shared = [layout.new_file()]
        try:
            self._arrays, self._infos = layout.arrays(shared[0]), tuple(described.infos)
            for _ in range(2):
                sleeper, waker = os.pipe()
                shared.append(sleeper)
                self._wakers.append(os.fdopen(waker, "wb", buffering=0))
            for child in self._children:
                for file in (*shared, answers):
                    child.send_file(file)
        finally:
            for file in shared:
                os.close(file)

    def _describe(self, described: Described, num_envs: int) -> None:
        self.num_envs = num_envs
        self.metadata = described.metadata
        self.single_observation_space = described.observation_space
        self.single_action_space = described.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        for name, value in described.attributes.items():
            setattr(self, name, value)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        rows = rows_to_reset(options, self.num_envs)
        seeds = None if seed is None else environment_seeds(seed, self.num_envs)
        messages = []
        for own in self._rows:
            theirs = options
            if options is not None and "reset_mask" in options:
                theirs = {**options, "reset_mask": rows[own]}
            messages.append((None if seeds is None else seeds[own].tolist(), theirs))
        notes = self._let_all(_RESET, messages)
        return self._observations(), self._shown(notes, rows)

    def step(
        self, actions: npt.ArrayLike
    ) -> tuple[Observations, npt.NDArray[Any], Flags, Flags, dict[str, Any]]:
        count = int(self.single_action_space.n)  # type: ignore[attr-defined]
        checked, arrays = check_actions(actions, self.num_envs, count), self._arrays
        arrays["actions"][...] = checked
        notes = self._let_all(_STEP)
        rewards, terminated, truncated = (
            arrays[name].copy() for name in ("rewards", "terminated", "truncated")
        )
        return self._observations(), rewards, terminated, truncated, self._shown(notes)

    def _observations(self) -> Observations:
        observations = self._arrays["observations"]
        return observations.copy() if self._copy else observations

    def _shown(self, notes: list[str], reset: Flags | None = None) -> dict[str, Any]:
        """Return the infos of a step, or of a `reset` of some environments `[N]`."""
        arrays, status = self._arrays, self._arrays["status"]
        infos: dict[str, Any] = {name: arrays[name].copy() for name in self._infos}
        if (status & _LAST).any():
            infos |= {name: self._where(_LAST, name, 0) for name in ("final_obs", "_final_obs")}
        if (status & _MASKS).any():
            masks = self._where(_MASKS, "action_mask", True)
            if reset is not None and self._masks is not None:
                masks = np.where(reset[:, None], masks, self._masks)
            infos["action_mask"] = self._masks = masks
        if new := [note for note in dict.fromkeys(notes) if note not in self._noted]:
            self._noted.update(new)
            infos["notes"] = new
        return infos

    def _where(self, part: int, name: str, other: int) -> npt.NDArray[Any]:
        """Return an array as the processes wrote it that have this part of an answer, `other` elsewhere."""
        array = np.full_like(self._arrays[name], other)
        for rows, status in zip(self._rows, self._arrays["status"], strict=True):
            if status & part:
                array[rows] = self._arrays[name][rows]
        return array

    def _let_all(self, order: bytes, messages: Sequence[Any] = ()) -> list[str]:
        """Let all processes carry out an order, to which each may get a message, wait for them, and return
        what their environments noted.

        Raises what an environment raised, or ChildDied.
        """
        self._check_open()
        if self._under_way:  # answers to it may still come, and would pass for those to this order
            raise RuntimeError("a call before was not carried out to its end: make the environments anew")
        self._under_way = True
        try:
            self._wake(order)
            for child, message in zip(self._children, messages, strict=False):
                child.send(message)  # only now that it reads: a pipe holds some 100 KB
            self._wait()
            answers = self._receive(np.flatnonzero(self._arrays["status"] & _MESSAGE))
        except (ChildDied, OSError, ValueError):
            self._check_open()  # another thread may have closed it meanwhile
            raise
        self._under_way = False
        return [note for notes in _unless_failed(answers) for note in notes]

    def _wake(self, order: bytes) -> None:
        with suppress(BrokenPipeError):  # all are dead, as `_wait` finds
            self._wakers[self._turn].write(order * len(self._children))
        # Two pipes take turns: in one, a fast process could take a byte that is meant for a slow one.
        self._turn = 1 - self._turn

    def _wait(self) -> None:
        missing = len(self._children)
        while missing:
            with suppress(BlockingIOError):  # none in all this time
                missing -= len(self._answers.recv(missing, socket.MSG_WAITALL))
            if missing:
                self._check_open()
                for child in self._children:
                    child.check()

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("this environment is closed")

    def _receive(self, indices: Iterable[int]) -> list[_Answer]:
        return [self._children[index].receive() for index in indices]

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes, even while a step waits for them in another thread."""
        self._open = False
        for waker in self._wakers:
            waker.close()  # they read its end, and end
        for child in self._children:
            child.close()
        end = time.monotonic() + _PATIENCE
        for child in self._children:
            child.end(max(0.01, end - time.monotonic()))
        with suppress(OSError):
            self._answers.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
        self._answers.close()


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


def _unless_failed(answers: Sequence[_Answer]) -> list[Any]:
    """Return what the processes sent. Raises the first error among it."""
    for failed, what in answers:
        if failed:
            error, trace = what
            raise error from RemoteTraceback(trace)
    return [what for _, what in answers]


def _numbers(rows: slice) -> str:
    last = rows.stop - 1
    return f"environment {last}" if rows.start == last else f"environments {rows.start} to {last}"


def _serve(
    connection: Connection,
    make: Callable[..., VectorEnv[Any, Any, Any]],
    rows: slice,
    num_envs: int,
    index: int,
    processes: int,
    cpu: int | None,
) -> None:
    """Run process number `index`: make its environments, and step them until the pipes are closed."""
    faulthandler.enable(file=2)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    with _warnings_of_one(index), suppress(EOFError, ConnectionError):  # the other side is gone
        try:
            env = make(num_envs=rows.stop - rows.start)
        except Exception as error:
            send(connection, (True, _portable(error)))
            return
        with closing(env):
            described = Described.of(env)
            send(connection, (False, described))
            file, *sleepers, answers = (receive_file(connection) for _ in range(4))
            arrays = Layout(described, num_envs, processes).arrays(file)
            os.close(file)
            status = arrays.pop("status")[index : index + 1]
            own = {name: array[rows] for name, array in arrays.items()}
            _work(connection, env, own, status, sleepers, answers)


def _work(
    connection: Connection,
    env: VectorEnv[Any, Any, Any],
    own: Arrays,
    status: npt.NDArray[np.uint8],
    sleepers: Sequence[int],
    answers: int,
) -> None:
    turn = 0
    while order := os.read(sleepers[turn], 1):
        turn = 1 - turn
        try:
            infos = _step(env, own) if order == _STEP else _reset(env, own, *connection.recv())
            for name, value in infos.items():
                if name in own:
                    own[name][...] = value
            has = _MASKS * ("action_mask" in infos) + _LAST * ("final_obs" in infos)
            message = (False, infos["notes"]) if "notes" in infos else None
        except Exception as error:
            has, message = 0, (True, _portable(error))
        status[0] = has + _MESSAGE * (message is not None)
        os.write(answers, order)
        if message is not None:  # only now: it may wait for a reader
            send(connection, message)


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
    """Return an error that another process can raise, and its traceback."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(repr(error))
    return error, trace
