"""Evaluation split across processes, one per core: rows are independent, and small batches fill no more."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

from ..errors import RunError
from ..processes.child import Child, ChildDied
from ..processes.machine import prepare_process
from .play import Rows, Setup

_TELL_SECONDS = 0.5
"""Seconds between reports of a process on its progress."""


def play_in_processes(
    setup: Setup, parts: Sequence[Rows], tell: Callable[[Sequence[int], Sequence[int]], None]
) -> list[Rows]:
    """Play each part in a process of its own; return the parts as they are when all have been played.

    `tell` hears the episodes and steps of each part so far. Raises RunError if a process fails or dies.
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
                if isinstance(result, Rows):
                    played[index] = result
                    del waiting[connection]  # type: ignore[arg-type]
                    result = result.done, result.steps
                done[index], steps[index] = result
                tell(done, steps)
    finally:
        for child in children:
            child.end()
            child.close()
    return played


def _receive(child: Child) -> Rows | tuple[int, int]:
    """Return what a process has played: all, or episodes and steps so far. Raises RunError."""
    try:
        what, result = child.receive()
    except ChildDied as error:
        raise RunError(str(error)) from error.__cause__
    if what == "failed":
        raise result if isinstance(result, RunError) else RunError(f"{child.name}: {result}")
    return result


def _play(connection: Connection, setup: Setup, part: Rows) -> None:
    """Run one process: play, and report on the pipe."""
    prepare_process(1)
    told_at = 0.0

    def tell(done: int, steps: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_SECONDS:
            told_at = time.monotonic()
            connection.send(("progress", (done, steps)))

    try:
        part.play(setup, tell)
        connection.send(("played", part))
    except RunError as error:
        connection.send(("failed", error))
    except OSError:  # nobody listens any more
        return
    except Exception:
        connection.send(("failed", traceback.format_exc()))
