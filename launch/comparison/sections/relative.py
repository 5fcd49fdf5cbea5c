"""Sections of relative improvement: the publication's bar charts, of our runs and of its own table."""

from __future__ import annotations

import statistics

from .. import plots
from ..aggregation import MOST_PAIRS, pairs
from ..grouping import Comparison
from ..names import file_name, name_of, versus
from ..relative import BUDGETS, is_published, published_improvement, relative_improvement
from ..report import Plot, Section
from ..scores import ScoreBoard
from ..tables import Cell, Table
from .published import published_pair

Changes = list[tuple[str, float | None]]
"""What a bar stands for, and its percentage."""


def relative(comparison: Comparison, board: ScoreBoard) -> list[Section]:
    """Draw a chart of games for every pair of series; for a single game, one chart of pairs."""
    rows = [row for pair in pairs(comparison.series) for row in _rows(*pair, comparison, board)]
    if not rows:
        return [Section("Relative improvement", ["It needs two series with scores of the same game."])]
    text = [
        "(score − baseline) / baseline in percent, of means over seeds: what the publication's Figures 1 to "
        "12 show of "
        "its own scores. Axes are linear to ±100 % and logarithmic beyond.",
    ]
    if any(row[-1] is None for row in rows):
        text.append(
            "A percentage of a baseline that is not positive has no meaning: there is no bar for it. The "
            "difference, and the probability of improvement above, compare such series too."
        )
    columns = ("game", "series", "over", "score", "score of the other", "difference", "improvement, %")
    table = Table("relative-improvement", columns, rows, 3)
    one = len(comparison.games) == 1
    if len(rows) > MOST_PAIRS and one:
        text.append(f"Of {len(rows)} pairs the {MOST_PAIRS} are drawn that are furthest apart.")
    many = not one and len(pairs(comparison.series)) > MOST_PAIRS
    if many:
        text.append(f"Charts are left out for more than {MOST_PAIRS} pairs of series.")
    first = Section(
        "Relative improvement", text, plots=_of_one_game(comparison, rows) if one else [], tables=[table]
    )
    return [first] if one or many else [first, *_of_pairs(comparison, board)]


def _rows(better: str, baseline: str, comparison: Comparison, board: ScoreBoard) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for game in comparison.games:
        if (game, better) in board.cells and (game, baseline) in board.cells:
            new, old = (statistics.fmean(s.value for s in board.cells[game, s_]) for s_ in (better, baseline))
            change = relative_improvement(new, old)
            rows.append([name_of(game), better, baseline, new, old, new - old, change])
    return rows


def _of_one_game(comparison: Comparison, rows: list[list[Cell]]) -> list[Plot]:
    (game,) = comparison.games
    name = name_of(game)
    furthest = sorted(rows, key=_difference, reverse=True)[:MOST_PAIRS]
    rows = [row for row in rows if row in furthest]
    labels = [versus(str(row[1]), str(row[2])) for row in rows]
    cores = [(comparison.core_of[str(row[1])], comparison.core_of[str(row[2])]) for row in rows]
    changes_of = {"our runs": [_percent(row) for row in rows]} | {
        f"published, {millions}M": [published_improvement(game, *pair, millions) for pair in cores]
        for millions in BUDGETS
    }
    charts: dict[str, Changes] = {
        what: list(zip(labels, changes, strict=True))
        for what, changes in changes_of.items()
        if any(change is not None for change in changes)
    }
    if "our runs" not in charts:
        return []
    every = [change for chart in charts.values() for _, change in chart]
    return [
        Plot(
            f"relative-{file_name(game)}-{what.replace(', ', '-').replace(' ', '-')}",
            f"{name}: relative improvement, {what}.",
            plots.improvements(changes, f"{name}: {what}", "relative improvement", beside=every),
        )
        for what, changes in charts.items()
    ]


def _of_pairs(comparison: Comparison, board: ScoreBoard) -> list[Section]:
    """Draw a chart for each pair of series, games by improvement, and the published one in the same order."""
    sections: list[Section] = []
    for better, baseline in pairs(comparison.series):
        rows = _rows(better, baseline, comparison, board)
        changes: Changes = [(str(row[0]), _percent(row)) for row in rows]
        if all(change is None for _, change in changes):
            continue
        changes.sort(key=lambda item: float("inf") if item[1] is None else -item[1])
        figures = plots.improvements(
            changes,
            f"{better} over {baseline}: our runs",
            f"relative improvement of the {board.kind}",
            better,
            baseline,
        )
        name = f"relative-{file_name(better)}-over-{file_name(baseline)}"
        drawn = [Plot(name, f"Our runs: {better} relative to {baseline}.", figures)]
        cores = comparison.core_of[better], comparison.core_of[baseline]
        games = [game for shown, _ in changes for game in comparison.games if name_of(game) == shown]
        if cores[0] != cores[1]:
            known = [game for game in games if is_published(game)]
            drawn += published_pair(*cores, known, [c for _, c in changes], f"{name}-published")
        sections.append(Section(f"{better} over {baseline}", plots=drawn, folded=len(sections) > 2))
    return sections


def _difference(row: list[Cell]) -> float:
    return abs(row[-2]) if isinstance(row[-2], float) else 0.0


def _percent(row: list[Cell]) -> float | None:
    return row[-1] if isinstance(row[-1], float) else None
