"""Fewer rows of a long log, chosen while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Row = TypeVar("Row")


def seconds_taken(steps: float, speed: float | None, unknown: float) -> float:
    """Return how many seconds a row's steps took by its own speed; `unknown` where it has none."""
    return steps / speed if steps > 0 and speed else unknown


def stood_still(pause: float, steps: float, speed: float | None) -> bool:
    """Return whether a run was stopped between two rows `pause` seconds apart: that is ten times what the
    steps take, or less than no time."""
    return pause < 0 or pause > 10 * seconds_taken(steps, speed, pause)


def thin(rows: Iterable[Row], most: int, stopped: Callable[[Row, Row], bool]) -> list[Row]:
    """Return at most twice `most` of the rows, as evenly as can be, all of them if they are no more.

    The first and the last are among them, and both rows beside each stop (`stopped(before, after)`), so that
    the time of training can still be told from that between a stop and its resume; unless there are more such
    rows than `most`.
    """
    chosen: dict[int, Row] = {}
    beside_stops: set[int] = set()
    stride, number, before = 1, -1, None
    for number, row in enumerate(rows):
        if before is not None and stopped(before, row):
            beside_stops |= {number - 1, number}
            chosen[number - 1] = before
        if number % stride == 0 or number in beside_stops:
            chosen[number] = row
        if len(chosen) >= 2 * most:
            stride *= 2
            if len(beside_stops) > most:
                beside_stops.clear()
            chosen = {i: row for i, row in chosen.items() if i % stride == 0 or i in beside_stops}
        before = row
    if before is not None:
        chosen[number] = before
    return [chosen[i] for i in sorted(chosen)]
