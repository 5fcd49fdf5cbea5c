"""Sections of scores: game by game, over all games, and who beats whom."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from ...runs.published import PROTOCOL
from .. import plots
from ..aggregation import MOST_PAIRS, ONE_SEED, Aggregation, pairs
from ..grouping import Comparison
from ..names import count, join, name_of, versus
from ..plots import Look
from ..relative import BUDGETS
from ..report import Plot, Section
from ..scores import ScoreBoard
from ..statistics import (
    Array,
    Interval,
    as_scores,
    bootstrap,
    iqm,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
)
from ..tables import Cell, Table
from .published import score_text


def conclusions(comparison: Comparison, board: ScoreBoard) -> list[str]:
    """State the conclusions that the numbers allow."""
    over = Aggregation(comparison, board)
    if not over.games:
        return ["There is no score that all series share, so nothing can be concluded over games."]
    ranked = sorted(((bootstrap(iqm, over.of(label)), label) for label in over.series), reverse=True)
    named = "; ".join(f"{label} {plots.with_interval(estimate)}" for estimate, label in ranked)
    where = "" if over.games == comparison.games else f" over {join(over.games)}"
    lines = [f"Interquartile mean of the {over.unit}{where}, highest first: {named}."]
    if any(len(game) == 1 for label in over.series for game in over.of(label)):
        lines.append("With one seed of a core nothing follows for others: train more before you conclude.")
    elif len(ranked) > 1:
        first, second = ranked[0][1], ranked[1][1]
        chance = _chance(over, first, second)
        rest = " Which of the two is better stays open." if chance.low <= 0.5 <= chance.high else ""
        lines.append(
            f"A run of {first} scores higher than one of {second} with probability "
            f"{plots.with_interval(chance)}.{rest}"
        )
    return lines


def scores(comparison: Comparison, board: ScoreBoard) -> Section:
    """Tabulate every game and series: mean over seeds with its interval, the seeds, and published scores."""
    rows: list[list[Cell]] = []
    bold = set()
    for game in comparison.games:
        labels = [label for label in comparison.series if (game, label) in board.cells]
        means = [statistics.fmean(s.value for s in board.cells[game, label]) for label in labels]
        if len(means) > 1:
            bold |= {(len(rows) + i, 2) for i, value in enumerate(means) if value == max(means)}
        rows += [_score_row(game, label, comparison, board) for label in labels]
    names = ("game", "series", "mean", "low", "high", "seeds' scores", "seeds", "steps", "normalised",
             *(f"published {millions}M" for millions in BUDGETS))  # fmt: skip
    used = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    note = "Bold: the highest mean of a game."
    if any(row[names.index("low")] is not None for row in rows):
        note += " Low, high: its 95% bootstrap interval over seeds, rough where there are few."
    if names.index("normalised") in used:
        note += " Normalised: 0 is random play, 1 a human's or, of a task of memory, the best return."
    if len(names) - 1 in used:
        note += " Published: mean ± standard deviation of five evaluations of one seed, it seems."
    table = Table("scores", [names[i] for i in used], [[row[i] for i in used] for row in rows], 2, note,
                  bold=frozenset(bold))  # fmt: skip
    return Section("Scores", [board.description], tables=[table] if rows else [])


def _score_row(game: str, label: str, comparison: Comparison, board: ScoreBoard) -> list[Cell]:
    found = board.cells[game, label]
    values = [score.value for score in found]
    interval = bootstrap(mean, as_scores([values]))
    normalized = [score.normalized for score in found if score.normalized is not None]
    core, comparable = comparison.core_of[label], board.protocol == PROTOCOL
    return [
        name_of(game),
        label,
        statistics.fmean(values),
        *((interval.low, interval.high) if len(values) > 1 else (None, None)),
        ", ".join(map(plots.number, values)) if len(values) > 1 else None,
        len(values),
        round(statistics.fmean(score.step for score in found)),
        statistics.fmean(normalized) if normalized else None,
        *(score_text(game, core, millions) if comparable else None for millions in BUDGETS),
    ]


def aggregates(comparison: Comparison, board: ScoreBoard, style: Mapping[str, Look]) -> Section:
    """IQM, and over several games median, mean and optimality gap, with their intervals."""
    title = "Aggregate scores"
    over = Aggregation(comparison, board)
    if not over.games:
        return Section(title, [*over.notes, "There is nothing to aggregate."])
    kinds: dict[str, Callable[..., Array]] = {"IQM": iqm}
    if len(over.games) > 1:
        kinds |= {"median": median, "mean": mean}
    if over.normalized:
        kinds["optimality gap"] = optimality_gap
    rows: list[list[Cell]] = []
    drawn = []
    for name, statistic in kinds.items():
        estimates = [(label, bootstrap(statistic, over.of(label))) for label in over.series]
        rows += [[name, label, *estimate] for label, estimate in estimates]
        figures = plots.intervals(
            [(label, estimate, style[label].color) for label, estimate in estimates], _title(name), over.unit
        )
        caption = (
            f"{_title(name)} of {count(len(over.games), 'game')}, with 95% stratified bootstrap intervals."
        )
        drawn.append(Plot(f"aggregate-{name.lower().replace(' ', '-')}", caption, figures))
    text = [
        "The IQM (interquartile mean) is the mean of the middle half of all seeds of all games."
        + (" Median and mean are over games, of means over seeds." if "median" in kinds else "")
        + (f" The optimality gap is how far runs fall short of {over.best}." if over.normalized else "")
        + " Bars are 95% intervals of a stratified bootstrap: seeds are drawn anew within each game (Agarwal "
        "et al. "
        "2021, as in rliable).",
        *over.notes,
    ]
    table = Table("aggregates", ("statistic", "series", over.unit, "low", "high"), rows, 2)
    return Section(title, text, plots=drawn, tables=[table])


def improvement(comparison: Comparison, board: ScoreBoard, style: Mapping[str, Look]) -> Section:
    """Draw the chance that a run of one series beats one of another, for every pair, likelier first."""
    title = "Probability of improvement"
    over = Aggregation(comparison, board)
    found = []
    for x, y in pairs(over.series):
        if not over.of_both(x, y):
            continue
        chance = _chance(over, x, y)
        if chance.value < 0.5:
            x, y, chance = y, x, Interval(1 - chance.value, 1 - chance.high, 1 - chance.low)
        found.append((x, y, chance))
    if not found:
        return Section(title, ["It needs two series with scores of the same game."])
    found.sort(key=lambda item: -item[2].value)
    text = [
        "The chance that a run of the first series scores higher than one of the second in the same game, "
        "mean over the games that both have scores of; a tie counts half. An interval that holds 0.5 leaves "
        "open which is better. It does not say by how much.",
    ]
    both = [game for x, y, _ in found for label in (x, y) for game in over.raw(label, over.of_both(x, y))]
    if any(len(game) == 1 for game in both):
        text.append(ONE_SEED)
    figures = plots.intervals(
        [(versus(x, y), chance, style[x].color) for x, y, chance in found[:MOST_PAIRS]],
        title,
        "P(a run of the first scores higher)",
        reference=0.5,
        limits=(0.0, 1.0),
    )
    caption = "With 95% stratified bootstrap intervals."
    if len(found) > MOST_PAIRS:
        caption += f" The likeliest {MOST_PAIRS} of {len(found)} pairs."
    plot = Plot("probability-of-improvement", caption, figures)
    columns = ("series", "over", "games", "probability", "low", "high")
    rows: list[list[Cell]] = [[x, y, len(over.of_both(x, y)), *chance] for x, y, chance in found]
    return Section(title, text, plots=[plot], tables=[Table("probability-of-improvement", columns, rows, 2)])


def _chance(over: Aggregation, x: str, y: str) -> Interval:
    games = over.of_both(x, y)
    return bootstrap(probability_of_improvement, over.raw(x, games), over.raw(y, games), reps=2_000)


def _title(name: str) -> str:
    return name[0].upper() + name[1:]
