"""The progress of an evaluation, on the console."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..output import say
from ..processes.supervision import watch
from ..units import count

Tell: TypeAlias = Callable[[int, int | None, int], None]

_LINE_SECONDS = 15.0
"""Seconds between two lines of progress where there is no terminal."""


@contextmanager
def progress(console: Console, name: str) -> Iterator[Tell]:
    """Yield a callback for `evaluate`: it draws a bar on a terminal, elsewhere prints a line at times.

    It is given the episodes that have ended, how many there are (None: that is open), and steps. Where it is
    not called for long, a line says so: an environment may hang.
    """
    called_at = time.monotonic()
    waits = f"{name}: an environment does not answer"
    silence = watch(threading.Event(), lambda: called_at, lambda: waits, partial(say, console), what="step")
    with silence, _shown(console, name) as show:

        def tell(done: int, total: int | None, steps: int) -> None:
            nonlocal called_at
            called_at = time.monotonic()
            show(done, total, steps)

        yield tell


@contextmanager
def _shown(console: Console, name: str) -> Iterator[Tell]:
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(name)
            yield lambda done, total, steps: bar.update(
                task, completed=done, total=total, description=f"{name}: {steps:,} steps, episode"
            )
        return
    spoke = time.monotonic()

    def line(done: int, total: int | None, steps: int) -> None:
        nonlocal spoke
        if time.monotonic() - spoke >= _LINE_SECONDS:
            spoke = time.monotonic()
            episodes = f"{count(done, 'episode')} ended" if total is None else f"{done} of {total} episodes"
            say(console, f"{name}: {episodes}, {steps:,} steps")

    yield line
