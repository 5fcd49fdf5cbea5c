"""Evaluation shared among processes, a core each: rows are independent, and small batches fill no more."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from ..errors import RunError
from ..processes.machine import prepare_process
from ..processes.supervision import how_it_ended

if TYPE_CHECKING:
    from .evaluate import Game, Part

_TELL_SECONDS = 0.5


def play_side_by_side(
    game: Game, parts: Sequence[Part], tell: Callable[[Sequence[int], Sequence[int]], None]
) -> list[Part]:
    """Play each part in a process of its own; the parts as they were when all was played.

    `tell` hears the episodes and steps of each part so far. Raises RunError if a process fails or dies.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of running threads
    connections: list[Connection] = []
    processes = []
    done, steps = [0] * len(parts), [0] * len(parts)
    played = list(parts)
    try:
        for number, part in enumerate(parts, 1):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_play, args=(theirs, game, part), name=f"evaluation {number}", daemon=True
            )
            process.start()
            theirs.close()  # so that its death ends the connection
            connections.append(ours)
            processes.append(process)
        waiting = list(connections)
        while waiting:
            for connection in wait(waiting):
                index = connections.index(connection)  # type: ignore[arg-type]
                try:
                    what, told = connections[index].recv()
                except (EOFError, OSError) as error:
                    raise RunError(f"{processes[index].name} {how_it_ended(processes[index])}") from error
                if what == "progress":
                    done[index], steps[index] = told
                    tell(done, steps)
                elif what == "played":
                    played[index] = told
                    done[index], steps[index] = told.done, told.steps
                    tell(done, steps)
                    waiting.remove(connection)  # type: ignore[arg-type]
                else:
                    raise told if isinstance(told, RunError) else RunError(f"{processes[index].name}: {told}")
    finally:
        for process in processes:
            process.kill()
            process.join()
        for connection in connections:
            connection.close()
    return played


def _play(connection: Connection, game: Game, part: Part) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the main process's, whose end ends this one
    prepare_process(1)
    spoke = 0.0

    def tell(done: int, steps: int) -> None:
        nonlocal spoke
        if time.monotonic() - spoke >= _TELL_SECONDS:
            spoke = time.monotonic()
            connection.send(("progress", (done, steps)))

    try:
        part.play(game, tell)
        connection.send(("played", part))
    except RunError as error:
        connection.send(("failed", error))
    except OSError:  # nobody listens any more
        return
    except Exception:
        connection.send(("failed", traceback.format_exc()))
