"""State-reset ablation: how far back agents use their memory, by scores with their state reset."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from .. import plots
from ..curves import Curve, Way, band, usual_way, way_of
from ..grouping import Comparison
from ..names import file_name, name_of
from ..plots import Look
from ..report import Plot, Section
from ..runs import Evaluation, Run
from ..tables import Cell, Table


def forgetting(comparison: Comparison, style: Mapping[str, Look]) -> list[Section]:
    """Draw the score over the steps between state resets, for every game; no section without such scores."""
    drawn, rows = [], []
    for game in comparison.games:
        cells = comparison.runs_of(game)
        way = usual_way(each for runs in cells.values() for run in runs for each in _with_resets(run))
        if way is None:
            continue
        chosen = {label: [_choose(run, way) for run in runs] for label, runs in cells.items()}
        every_one = {label: [_scores(each) for each in seeds if each] for label, seeds in chosen.items()}
        found = {label: seeds for label, seeds in every_one.items() if seeds}
        intervals = sorted({every for seeds in found.values() for each in seeds for every in each})
        # By powers of two, and never one more beyond the longest.
        place = {every: math.log2(every) for every in intervals if every < math.inf}
        place[math.inf] = max(place.values()) + 1
        curves = {label: [_curve(each, place) for each in seeds] for label, seeds in found.items()}
        figures = plots.learning_curves(
            curves,
            {label: band(seeds) for label, seeds in curves.items()},
            style,
            "agent steps between state resets",
            "return",
            f"{name_of(game)}, with less memory",
            ticks={where: _shown(every) for every, where in place.items()},
        )
        drawn.append(
            Plot(f"forgetting-{file_name(game)}", f"{name_of(game)}: return with less memory.", figures)
        )
        rows += _rows(game, found, intervals)
    if not drawn:
        return []
    text = [
        "State-reset ablation: the same agents, evaluated again with their state reset every N agent steps "
        "(`eval --forget-every`). The smallest N that costs nothing is how far back they use their memory."
    ]
    columns = ("game", "series", "reset every", "mean", "lowest", "highest", "seeds")
    return [Section("With less memory", text, plots=drawn, tables=[Table("forgetting", columns, rows, 2)])]


def _with_resets(run: Run) -> list[Evaluation]:
    return [each for each in run.evaluations if each.forgetful]


def _choose(run: Run, way: Way) -> Evaluation | None:
    """Return the evaluation at the highest step, of several the newest."""
    alike = [each for each in _with_resets(run) if way_of(each) == way]
    return max(alike, key=lambda each: (each.step, each.time), default=None)


def _scores(evaluation: Evaluation) -> dict[float, float]:
    """Return the score by the steps between state resets, infinite for none."""
    whole = evaluation.game if evaluation.game is not None else evaluation.life
    assert whole is not None
    return {**evaluation.forgetful, math.inf: whole}


def _curve(scores: Mapping[float, float], place: Mapping[float, float]) -> Curve:
    intervals = sorted(scores)
    return Curve(
        np.array([place[every] for every in intervals]), np.array([scores[every] for every in intervals])
    )


def _shown(every: float) -> str:
    return "never" if every == math.inf else f"{every:g}"


def _rows(
    game: str, found: Mapping[str, Sequence[Mapping[float, float]]], intervals: Sequence[float]
) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for label, seeds in found.items():
        for every in intervals:
            values = [each[every] for each in seeds if every in each]
            if values:
                means = statistics.fmean(values), min(values), max(values)
                rows.append([name_of(game), label, _shown(every), *means, len(values)])
    return rows
