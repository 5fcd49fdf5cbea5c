"""Learning curves of several seeds on one grid: mean and spread."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..runs.thinning import seconds_taken
from .runs import Evaluation, Run

Array = NDArray[np.float64]
Way = tuple[str | None, bool]
"""How an evaluation was made: its protocol, and whether it was greedy."""
GRID = 160
"""Points of a mean curve."""
_WHOLE = 0.95
"""A seed that came less far than this share of the longest one is drawn, but is not in the mean."""


class Curve(NamedTuple):
    """One seed: a metric over agent steps or over seconds, x rising."""

    x: Array
    y: Array


class Band(NamedTuple):
    """The mean over seeds and their lowest and highest, on a common grid."""

    x: Array
    mean: Array
    low: Array
    high: Array
    seeds: int


def training_seconds(rows: Sequence[Mapping[str, float]]) -> Array:
    """Return the seconds of training at each row of a log, without the time between a stop and its resume.

    The log has the clock: a pause more than ten times what the steps took by the row's own speed is a stop,
    and counts as that. The start, before the first row, is what its speed says.
    """
    if not rows:
        return np.zeros(0)
    pauses = np.diff([row["time"] for row in rows])
    usual = float(np.median(pauses)) if len(pauses) else 0.0
    taken = [
        seconds_taken(row["step"] - before["step"], row.get("sps"), usual)
        for before, row in itertools.pairwise(rows)
    ]
    pauses = np.where((pauses > 10 * np.array(taken)) | (pauses < 0), taken, pauses)
    first = seconds_taken(rows[0]["step"], rows[0].get("sps"), 0.0)
    return first + np.concatenate([[0.0], np.cumsum(pauses)])


def curve_of(rows: Sequence[Mapping[str, float]], metric: str, seconds: bool = False) -> Curve:
    """Return a metric of a log over agent steps or seconds of training; empty if it was never logged."""
    x = training_seconds(rows) if seconds else np.array([row["step"] for row in rows], dtype=np.float64)
    logged = [i for i, row in enumerate(rows) if metric in row]
    return Curve(x[logged], np.array([rows[i][metric] for i in logged], dtype=np.float64))


def usual_way(evaluations: Iterable[Evaluation]) -> Way | None:
    """Return the way in which most of them were made; None if there are none."""
    ways = Counter(way_of(each) for each in evaluations)
    return ways.most_common(1)[0][0] if ways else None


def way_of(evaluation: Evaluation) -> Way:
    return evaluation.protocol, evaluation.greedy


def evaluation_curve(run: Run, way: Way) -> Curve:
    """Return the mean returns of an agent's episodes in evaluations of a run, by agent steps.

    Of whole games there may be none: the few lives of an evaluation need not end one.
    """
    best: dict[int, Evaluation] = {}
    for each in sorted(run.evaluations, key=lambda each: (each.episodes, each.time)):
        if way_of(each) == way and each.life is not None:
            best[each.step] = each
    found = [best[step] for step in sorted(best)]
    x = np.array([each.step for each in found], dtype=np.float64)
    return Curve(x, np.array([each.life for each in found], dtype=np.float64))


def whole(last_steps: Sequence[int]) -> list[bool]:
    """Return which seeds of a series came about as far as the farthest."""
    return [step >= _WHOLE * max(last_steps) for step in last_steps]


def band(curves: Sequence[Curve], hold: bool = False) -> Band:
    """Average curves and take their extremes where all seeds have points, interpolating linearly.

    hold: go on to the end of the longest; a seed that has ended keeps its last value.
    """
    first = max(c.x[0] for c in curves)
    last = (max if hold else min)(c.x[-1] for c in curves)
    x = np.linspace(first, last, GRID) if last > first else np.array([last])
    y = np.stack([np.interp(x, c.x, c.y) for c in curves])
    return Band(x, y.mean(axis=0), y.min(axis=0), y.max(axis=0), len(curves))
