"""Sections of relative improvement: the publication's bar charts, of our runs and of its own table."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from .. import plots
from ..aggregation import MOST_PAIRS, pairs
from ..grouping import Comparison
from ..names import file_name, name_of, versus
from ..relative import BUDGETS, is_published, published_improvement, relative_improvement
from ..report import Plot, Section
from ..scores import ScoreBoard
from ..tables import Cell, Table
from .published import published_pair


class Change(NamedTuple):
    """How a series scores beside another on a game."""

    game: str
    series: str
    baseline: str
    score: float
    other: float
    """score of the baseline"""
    difference: float
    percent: float | None


def relative(comparison: Comparison, board: ScoreBoard) -> list[Section]:
    """Draw a chart of games for every pair of series; for a single game, one chart of pairs."""
    by_pair = {pair: _changes(*pair, comparison, board) for pair in pairs(comparison.series)}
    changes = [change for each in by_pair.values() for change in each]
    if not changes:
        return [Section("Relative improvement", ["It needs two series with scores of the same game."])]
    text = [
        "(score − baseline) / baseline in percent, of means over seeds: what the publication's Figures 1 to "
        "12 show of its own scores. Axes are linear to ±100 % and logarithmic beyond.",
    ]
    if any(change.percent is None for change in changes):
        text.append(
            "A percentage of a baseline that is not positive has no meaning: there is no bar for it. The "
            "difference, and the probability of improvement above, compare such series too."
        )
    columns = ("game", "series", "over", "score", "score of the other", "difference", "improvement, %")
    rows: list[list[Cell]] = [[name_of(change.game), *change[1:]] for change in changes]
    table = Table("relative-improvement", columns, rows, 3)
    one = len(comparison.games) == 1
    if len(rows) > MOST_PAIRS and one:
        text.append(f"Of {len(rows)} pairs the {MOST_PAIRS} are drawn that are furthest apart.")
    many = not one and len(by_pair) > MOST_PAIRS
    if many:
        text.append(f"Charts are left out for more than {MOST_PAIRS} pairs of series.")
    first = Section(
        "Relative improvement", text, plots=_of_one_game(comparison, changes) if one else [], tables=[table]
    )
    if one or many:
        return [first]
    drawn = {pair: _of_pair(*pair, each, comparison, board) for pair, each in by_pair.items()}
    titled = [(f"{better} over {baseline}", of_it) for (better, baseline), of_it in drawn.items() if of_it]
    return [first, *(Section(title, plots=of_it, folded=i > 2) for i, (title, of_it) in enumerate(titled))]


def _changes(better: str, baseline: str, comparison: Comparison, board: ScoreBoard) -> list[Change]:
    changes = []
    for game in comparison.games:
        if (game, better) in board.cells and (game, baseline) in board.cells:
            new, old = (statistics.fmean(s.value for s in board.cells[game, s_]) for s_ in (better, baseline))
            percent = relative_improvement(new, old)
            changes.append(Change(game, better, baseline, new, old, new - old, percent))
    return changes


def _of_one_game(comparison: Comparison, changes: list[Change]) -> list[Plot]:
    (game,) = comparison.games
    name = name_of(game)
    furthest = sorted(changes, key=lambda change: abs(change.difference), reverse=True)[:MOST_PAIRS]
    changes = [change for change in changes if change in furthest]
    labels = [versus(change.series, change.baseline) for change in changes]
    cores = [(comparison.core_of[change.series], comparison.core_of[change.baseline]) for change in changes]
    percents = {"our runs": [change.percent for change in changes]} | {
        f"published, {millions}M": [published_improvement(game, *pair, millions) for pair in cores]
        for millions in BUDGETS
    }
    charts = {what: each for what, each in percents.items() if any(percent is not None for percent in each)}
    if "our runs" not in charts:
        return []
    every = [percent for each in charts.values() for percent in each]
    return [
        Plot(
            f"relative-{file_name(game)}-{what.replace(', ', '-').replace(' ', '-')}",
            f"{name}: relative improvement, {what}.",
            plots.improvements(
                list(zip(labels, each, strict=True)), f"{name}: {what}", "relative improvement", beside=every
            ),
        )
        for what, each in charts.items()
    ]


def _of_pair(
    better: str, baseline: str, changes: list[Change], comparison: Comparison, board: ScoreBoard
) -> list[Plot]:
    """Draw games by improvement, and the published chart in the same order; nothing without a percentage."""
    if all(change.percent is None for change in changes):
        return []
    changes = sorted(changes, key=lambda c: float("inf") if c.percent is None else -c.percent)
    figures = plots.improvements(
        [(name_of(change.game), change.percent) for change in changes],
        f"{better} over {baseline}: our runs",
        f"relative improvement of the {board.kind}",
        better,
        baseline,
    )
    name = f"relative-{file_name(better)}-over-{file_name(baseline)}"
    drawn = [Plot(name, f"Our runs: {better} relative to {baseline}.", figures)]
    cores = comparison.core_of[better], comparison.core_of[baseline]
    if cores[0] != cores[1]:
        titles = {change.game: name_of(change.game) for change in changes if is_published(change.game)}
        drawn += published_pair(*cores, titles, f"{name}-published", [change.percent for change in changes])
    return drawn
