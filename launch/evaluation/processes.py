"""Evaluation split across processes, one per core: a batch as small as theirs cannot use more than one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from ...envs import EnvironmentFailed
from ..errors import RunError, trace_of
from ..processes.child import Child, ChildDied, RemoteTraceback, send
from ..processes.machine import prepare_process
from .play import Repeats, Setup

_TELL_SECONDS = 0.5
"""Seconds between reports of a process on its progress."""


def play_in_processes(
    setup: Setup, parts: Sequence[Repeats], tell: Callable[[Sequence[int], Sequence[int]], None]
) -> list[Repeats]:
    """Play each part in a process of its own; return the parts as they are when all have been played.

    `tell` hears the episodes and steps of each part so far. Raises RunError if a process fails or dies, or
    EnvironmentFailed.
    """
    done, steps = [0] * len(parts), [0] * len(parts)
    played = list(parts)
    children: list[Child] = []
    try:
        for number, part in enumerate(parts, 1):
            children.append(Child(f"evaluation {number}", _play, setup, part))
        waiting = {child.connection: index for index, child in enumerate(children)}
        while waiting:
            for connection in wait(list(waiting)):
                index = waiting[connection]  # type: ignore[index]
                result = _receive(children[index])
                if isinstance(result, Repeats):
                    played[index] = result
                    del waiting[connection]  # type: ignore[arg-type]
                    result = result.num_scored, result.steps
                done[index], steps[index] = result
                tell(done, steps)
    finally:
        for child in children:
            child.end()
            child.close()
    return played


def _receive(child: Child) -> Repeats | tuple[int, int]:
    """Return what a process has played: all, or episodes and steps so far. Raises RunError."""
    try:
        what, result = child.receive()
    except ChildDied as error:
        raise RunError(str(error)) from None
    if what == "failed":
        raise result
    if what == "broke":
        message, trace = result
        raise RunError(f"{child.name} failed: {message}") from RemoteTraceback(trace)
    return result


def _play(connection: Connection, setup: Setup, part: Repeats) -> None:
    """Run one process: play, and report on the pipe."""
    prepare_process(1)
    told_at = 0.0

    def tell(done: int, steps: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_SECONDS:
            told_at = time.monotonic()
            send(connection, ("progress", (done, steps)))

    try:
        part.play(setup, tell)
        answer: tuple[str, Any] = "played", part
    except (RunError, EnvironmentFailed) as error:
        answer = "failed", error
    except Exception as error:
        answer = "broke", (repr(error), trace_of(error))
    with suppress(OSError):  # nobody listens any more
        send(connection, answer)
