"""One CPU core for each emulator thread."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FEW_GAMES = 8
"""With this many games per thread a core of its own does not help: results/throughput, "The games alone"."""


@contextmanager
def spread(games: int, threads: int) -> Iterator[None]:
    """Give each thread that begins within a core of its own, if they take all cores to play few games each.

    Emulators' threads sleep after each step of their games. A scheduler may wake two on one core while
    another idles, and part them only when the few games are played.
    """
    before = _threads()
    yield
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        cores = sorted(os.sched_getaffinity(0))
        if threads == len(cores) > 1 and games < FEW_GAMES * threads:
            for thread, core in zip(sorted(_threads() - before), cores, strict=False):
                os.sched_setaffinity(thread, {core})


def _threads() -> set[int]:
    """Return the ids of the process's threads, on Linux."""
    tasks = Path("/proc/self/task")
    return {int(task.name) for task in tasks.iterdir()} if tasks.exists() else set()
