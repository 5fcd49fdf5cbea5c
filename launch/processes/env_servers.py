"""Processes that step environments, each a part of them, as `ProcessEnvs` tells them to."""

from __future__ import annotations

import faulthandler
import os
import pickle
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

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
_PATIENCE = 5.0
"""Seconds that processes may take to end when they are no longer needed."""

Answer = tuple[bool, Any]
"""Whether it is an error, with its traceback, and what was sent."""


class EnvServers:
    """P processes that make N environments as soon as they have begun; `ProcessEnvs` waits for them."""

    def __init__(
        self,
        make: Callable[..., VectorEnv[Any, Any, Any]],
        num_envs: int,
        processes: int,
        of: str = "",
        cpus: Sequence[int] | None = None,
    ) -> None:
        """Start the processes.

        Args:
            make: `make(num_envs=n)` makes n environments that keep the contract of envs/README.md and are
                seeded one by one. A function of a module, or a `partial` of one; what that imports, each
                process does.
            num_envs: N.
            processes: P, at most N.
            of: whose environments they are, for messages.
            cpus: a core for each process; None leaves that to the system.

        Raises OSError where no more processes or files are to be had.
        """
        bounds = np.linspace(0, num_envs, processes + 1).round().astype(int).tolist()
        self.num_envs = num_envs
        self.rows = [slice(begin, end) for begin, end in pairwise(bounds)]
        self.children: list[Child] = []
        try:
            with _one_thread_each():
                for index, rows in enumerate(self.rows):
                    name = _numbers(rows) + (of and f" of {of}")
                    cpu = cpus and cpus[index]
                    child = Child(name, _serve, make, rows, num_envs, index, processes, cpu)
                    self.children.append(child)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes; again, if need be."""
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
            infos = _step(env, own) if order == STEP else _reset(env, own, *connection.recv())
            for name, value in infos.items():
                if name in own:
                    own[name][...] = value
            has = MASKS * ("action_mask" in infos) + LAST * ("final_obs" in infos)
            message = (False, infos["notes"]) if "notes" in infos else None
        except Exception as error:
            has, message = 0, (True, _portable(error))
        status[0] = has + MESSAGE * (message is not None)
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
