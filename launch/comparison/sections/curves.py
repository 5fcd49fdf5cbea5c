"""Sections of curves: how runs learned, and what their memories did meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from ....envs import find_protocol
from .. import plots
from ..curves import Band, Curve, band, curve_of, evaluation_curve, usual_way, whole
from ..grouping import Comparison
from ..names import file_name, name_of
from ..plots import Look
from ..report import Plot, Section
from ..tables import Cell, Table

MEMORY = {
    "write_strength": "write strength β (0 keeps what is stored, 1 replaces it)",
    "recurrent_write_strength": "write strength β of Delta RNN's recurrent matrix",
    "fast_weight_norm": "Frobenius norm of a head's fast weights",
    "read_age": "median age of what is read, in agent steps (1,001 for all above 1,000)",
    "read_beyond_100": "share of what is read that was written more than 100 agent steps before",
}
"""The logged metrics of memories, and what they are."""


def learning(comparison: Comparison, style: Mapping[str, Look]) -> Section:
    """Draw the return in training over agent steps and over seconds, for every game."""
    drawn, rows, short = [], [], []
    for game in comparison.games:
        for axis, words in (("steps", "agent steps"), ("time", "training time")):
            curves, bands = series_curves(comparison, game, "game_return", seconds=axis == "time")
            if not curves:
                continue
            title, y_label = f"{name_of(game)}, by {words}", "return, last 100 games"
            figures = plots.learning_curves(curves, bands, style, words, y_label, title, axis == "time")
            caption = f"{name_of(game)}: return in training by {words}."
            drawn.append(Plot(f"learning-{file_name(game)}-{axis}", caption, figures))
            if axis == "steps":
                rows += _curve_rows(game, bands)
                short += _ended_early(game, curves, bands)
        if plot := _evaluations(comparison, game, style):
            drawn.append(plot)
    text = [
        "Mean return of the last 100 training games, with sampled actions. Thin lines are seeds; the bold "
        "line is their mean, and the band reaches from the lowest to the highest of them.",
        "Time is that of training alone, without stops; in the means over time a seed that has ended keeps "
        "its last return. It compares cores only where all ran on the same machine with nothing beside them.",
        *short,
    ]
    columns = ("game", "series", "step", "mean", "lowest", "highest", "seeds")
    return Section(
        "Learning curves", text, plots=drawn, tables=[Table("curves", columns, rows, 2, csv_only=True)]
    )


def _evaluations(comparison: Comparison, game: str, style: Mapping[str, Look]) -> Plot | None:
    """Draw what checkpoints scored, where runs have evaluations of several (`train --eval-every`)."""
    cells = comparison.runs_of(game)
    way = usual_way(each for runs in cells.values() for run in runs for each in run.evaluations)
    if way is None:
        return None
    found = {label: [evaluation_curve(run, way) for run in runs] for label, runs in cells.items()}
    several = {label: [curve for curve in seeds if len(curve.x) > 1] for label, seeds in found.items()}
    curves = {label: seeds for label, seeds in several.items() if seeds}
    if not curves:
        return None
    bands = {label: band(seeds) for label, seeds in curves.items()}
    what = f"{name_of(game)}, evaluated checkpoints"
    figures = plots.learning_curves(curves, bands, style, "agent steps", "return, evaluated", what)
    protocol, greedy = way
    lives = protocol is not None and find_protocol(protocol).life_ends_episode
    caption = (
        f"{name_of(game)}: mean return of {'a life' if lives else 'an episode'} in evaluations of "
        f"checkpoints, {'greedy' if greedy else 'with sampled actions'}, by agent steps."
    )
    return Plot(f"evaluated-{file_name(game)}", caption, figures)


def memory(comparison: Comparison, style: Mapping[str, Look]) -> Section:
    """Draw every logged memory metric in training, and tabulate where it begins and ends."""
    drawn = []
    rows: list[list[Cell]] = []
    for game in comparison.games:
        for metric, meaning in MEMORY.items():
            curves, bands = series_curves(comparison, game, metric)
            if not curves:
                continue
            words = metric.replace("_", " ")
            figures = plots.learning_curves(
                curves, bands, style, "agent steps", words, f"{name_of(game)}, {words}"
            )
            name = f"memory-{file_name(game)}-{metric.replace('_', '-')}"
            drawn.append(Plot(name, f"{name_of(game)}: {meaning}.", figures))
            for label, seeds in curves.items():
                first, last = [float(c.y[0]) for c in seeds], [float(c.y[-1]) for c in seeds]
                means = statistics.fmean(first), statistics.fmean(last)
                rows.append([name_of(game), label, words, *means, min(last), max(last)])
    if not drawn:
        return Section("Memory", ["None of these series has logged metrics of its memory."])
    text = [
        "Means over updates, heads and layers, as the log has them; ages are samples of what is read in the "
        "first environment. A norm that only grows means that old associations stay and interfere; a write "
        "strength near 1, that every write replaces what its key held."
    ]
    columns = ("game", "series", "metric", "first", "last", "last, lowest seed", "last, highest seed")
    return Section("Memory", text, plots=drawn, tables=[Table("memory", columns, rows, 3)])


def series_curves(
    comparison: Comparison, game: str, metric: str, seconds: bool = False
) -> tuple[dict[str, list[Curve]], dict[str, Band]]:
    """Return a metric of every seed that logged it, by series, and the mean of each series' whole seeds."""
    curves, bands = {}, {}
    for label, members in comparison.runs_of(game).items():
        runs = [run for run in members if any(metric in row for row in run.rows)]
        found = [curve_of(run.rows, metric, seconds) for run in runs]
        if found:
            curves[label] = found
            complete = whole([run.last_step for run in runs])
            full = [curve for curve, is_whole in zip(found, complete, strict=True) if is_whole]
            bands[label] = band(full, hold=seconds)
    return curves, bands


def _ended_early(game: str, curves: Mapping[str, list[Curve]], bands: Mapping[str, Band]) -> list[str]:
    return [
        f"{name_of(game)}, {label}: {len(seeds) - bands[label].seeds} of {len(seeds)} seeds came less far "
        "than the others; they are drawn, but are not in the mean."
        for label, seeds in curves.items()
        if bands[label].seeds < len(seeds)
    ]


def _curve_rows(game: str, bands: Mapping[str, Band]) -> list[list[Cell]]:
    return [
        [name_of(game), label, round(x), float(mean), float(low), float(high), of.seeds]
        for label, of in bands.items()
        for x, mean, low, high in zip(of.x, of.mean, of.low, of.high, strict=True)
    ]
