"""Sections of scores: game by game, over all games, and who beats whom."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from ...runs.published import PROTOCOL
from ...units import count
from .. import plots
from ..aggregation import MOST_PAIRS, SEVERAL_GAMES, Aggregation, has_single, pairs
from ..grouping import Comparison
from ..names import join, name_of, versus
from ..plots import Look
from ..relative import BUDGETS
from ..report import Plot, Section
from ..scores import ScoreBoard
from ..statistics import (
    Array,
    Interval,
    Scores,
    as_scores,
    bootstrap,
    iqm,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
)
from ..tables import Cell, Table, highest
from .published import score_text

MEANS_LITTLE = 20.0
"""What comes about once in fewer times by chance is said to."""


def conclusions(comparison: Comparison, board: ScoreBoard) -> list[str]:
    """State what the numbers allow to conclude: who leads, beside the next and the best without memory."""
    over = Aggregation(comparison, board)
    if not over.games:
        return ["There is no score that all series share, so nothing can be concluded over games."]
    ranked = sorted(((over.estimate(iqm, over.of(label)), label) for label in over.series), reverse=True)
    named = "; ".join(f"{label} {plots.with_interval(found)}" for found, label in ranked)
    where = "" if over.games == comparison.games else f" over {join(over.games)}"
    lines = [f"Interquartile mean of the {over.unit}{where}, highest first: {named}."]
    if single := [game for game in over.games if any(len(board.cells[game, s]) == 1 for s in over.series)]:
        where = "" if single == over.games else f" on {join(single)}"
        lines.append(
            f"With one seed of a core{where} nothing follows for a single game; intervals are over games."
            if over.over_games
            else f"With one seed of a core{where} nothing follows for others: train more to conclude."
        )
    best, *others = (label for _, label in ranked)
    without = [label for label in (best, *others) if _has_no_memory(comparison, label)]
    for other in dict.fromkeys((*others[:1], *without[:1])):
        if other == best:
            continue
        both = over.of_both(best, other)
        games = both if over.over_games else [game for game in both if game not in single]
        lines += [_who_is_better(over, best, other, games, len(games) < len(both))] if games else []
    return lines


def _has_no_memory(comparison: Comparison, label: str) -> bool:
    """Whether a series reads the present step alone: a convolution over the last few is a memory, too."""
    if comparison.core_of[label] not in ("feedforward", "gated_feedforward"):
        return False
    runs = next(runs for (_, of), runs in comparison.cells.items() if of == label)
    return "short_conv" not in str(runs[0].settings.get("core_options"))


def _who_is_better(over: Aggregation, x: str, y: str, games: Sequence[str], are_others: bool) -> str:
    """Say how likely a run of x beats one of y, and what that is worth; `are_others`: of games beside those
    with a single seed."""
    x, y, chance = _likelier(over, x, y, games)
    some = join(games) if len(games) <= 2 else f"{'the other ' if are_others else ''}{len(games)} games"
    where = f" on {some}" if list(games) != over.games else ""
    text = (
        f"A run of {x} scores higher than one of {y}{where} with probability {plots.with_interval(chance)}."
    )
    if chance.low <= 0.5 <= chance.high:
        return f"{text} Which of the two is better stays open."
    if chance.value == 1 and (odds := _odds(over, x, y, games)) < MEANS_LITTLE:
        return (
            f"{text} Of equal series with so few seeds, one would beat the other so once in {odds:.0f} times."
        )
    return text


def _odds(over: Aggregation, x: str, y: str, games: Sequence[str]) -> float:
    """Return once in how many times all runs of one of two equal series beat all of the other."""
    pairs_of = zip(over.raw(x, games), over.raw(y, games), strict=True)
    return math.prod(math.comb(len(a) + len(b), len(a)) for a, b in pairs_of) / 2


def scores(comparison: Comparison, board: ScoreBoard) -> Section:
    """Tabulate every game and series: mean over seeds with its interval, the seeds, and published scores."""
    rows: list[list[Cell]] = []
    bold = set()
    for game in comparison.games:
        labels = [label for label in comparison.series if (game, label) in board.cells]
        means = [statistics.fmean(s.value for s in board.cells[game, label]) for label in labels]
        bold |= {(len(rows) + i, 2) for i in highest(means) if len(means) > 1}
        rows += [_score_row(game, label, comparison, board) for label in labels]
    names = ("game", "series", "mean", "low", "high", "seeds' scores", "seeds", "steps", "whole game",
             "normalised", *(f"published {millions}M" for millions in BUDGETS))  # fmt: skip
    used = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    note = "Bold: the highest mean of a game."
    if any(row[names.index("low")] is not None for row in rows):
        note += " Low, high: its 95% bootstrap interval over seeds, rough where there are few."
    if names.index("whole game") in used:
        note += " Whole game: the mean return of a game, where an episode is a life."
    if names.index("normalised") in used:
        note += " Normalised, of whole games: 0 is random play, 1 a human's or a memory task's best return."
    if len(names) - 1 in used:
        note += " Published: mean ± standard deviation of five evaluations of one seed, it seems."
    table = Table("scores", [names[i] for i in used], [[row[i] for i in used] for row in rows], 2, note,
                  bold=frozenset(bold))  # fmt: skip
    return Section("Scores", [board.description], tables=[table] if rows else [])


def _score_row(game: str, label: str, comparison: Comparison, board: ScoreBoard) -> list[Cell]:
    found = board.cells[game, label]
    values = [score.value for score in found]
    interval = bootstrap(mean, as_scores([values]))
    whole = [score.whole_game for score in found if score.whole_game is not None]
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
        statistics.fmean(whole) if whole else None,
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
        estimates = [(label, over.estimate(statistic, over.of(label))) for label in over.series]
        rows += [
            [name, label, *found, *_over_games(over, statistic, over.of(label))] for label, found in estimates
        ]
        figures = plots.intervals(
            [(label, found, style[label].color) for label, found in estimates], _title(name), over.unit
        )
        kind = _kind(over.over_games)
        caption = f"{_title(name)} of {count(len(over.games), 'game')}, with 95% {kind} intervals."
        drawn.append(Plot(f"aggregate-{name.lower().replace(' ', '-')}", caption, figures))
    text = [
        "The IQM (interquartile mean) is the mean of the middle half of all seeds of all games, each game "
        "weighing the same; of few, a quarter is rounded down to whole runs at each end."
        + (" Median and mean are over games, of means over seeds." if "median" in kinds else "")
        + (f" The optimality gap is how far runs fall short of {over.best}." if over.normalized else "")
        + (
            " Bars are 95% bootstrap intervals over games."
            if over.over_games
            else " Bars are 95% intervals of a stratified bootstrap: seeds are drawn anew within each game "
            "(Agarwal et al. 2021, as in rliable)."
        ),
        *over.notes,
    ]
    table, note = _table("aggregates", ("statistic", "series", over.unit, "low", "high"), rows)
    return Section(title, [*text, *note], plots=drawn, tables=[table])


def improvement(comparison: Comparison, board: ScoreBoard, style: Mapping[str, Look]) -> Section:
    """Draw the chance that a run of one series beats one of another, for every pair, likelier first."""
    title = "Probability of improvement"
    over = Aggregation(comparison, board)
    found = []
    for x, y in pairs(over.series):
        if not over.of_both(x, y):
            continue
        found.append(_likelier(over, x, y, over.of_both(x, y)))
    if not found:
        return Section(title, ["It needs two series with scores of the same game."])
    found.sort(key=lambda item: -item[2].value)
    text = [
        "The chance that a run of the first series scores higher than one of the second in the same game, "
        "mean over the games that both have scores of; a tie counts half. An interval that holds 0.5 leaves "
        "open which is better. It does not say by how much.",
    ]
    both = [[over.raw(label, over.of_both(x, y)) for label in (x, y)] for x, y, _ in found]
    text += dict.fromkeys(line for samples in both for line in over.about_single(*samples))
    figures = plots.intervals(
        [(versus(x, y), chance, style[x].color) for x, y, chance in found[:MOST_PAIRS]],
        title,
        "P(a run of the first scores higher)",
        reference=0.5,
        limits=(0.0, 1.0),
    )
    caption = f"With 95% {_kind(over.over_games)} intervals."
    if len(found) > MOST_PAIRS:
        caption += f" The likeliest {MOST_PAIRS} of {len(found)} pairs."
    plot = Plot("probability-of-improvement", caption, figures)
    columns = ("series", "over", "games", "probability", "low", "high")
    rows: list[list[Cell]] = [
        [x, y, len(samples[0]), *chance, *_over_games(over, probability_of_improvement, *samples, reps=2_000)]
        for (x, y, chance), samples in zip(found, both, strict=True)
    ]
    table, note = _table("probability-of-improvement", columns, rows)
    return Section(title, [*text, *note], plots=[plot], tables=[table])


def _over_games(
    over: Aggregation, statistic: Callable[..., Array], *samples: Scores, reps: int = 10_000
) -> tuple[float, float] | tuple[None, None]:
    """Return the interval over games; Nones where `estimate` has it, a game has one seed, or they are few."""
    if over.over_games or has_single(*samples) or len(samples[0]) < SEVERAL_GAMES:
        return None, None
    found = bootstrap(statistic, *samples, over_games=True, reps=reps)
    return found.low, found.high


def _table(name: str, columns: Sequence[str], rows: list[list[Cell]]) -> tuple[Table, list[str]]:
    """Make a table whose rows end in what `_over_games` returned; explain those columns, if any has one."""
    if all(row[-1] is None for row in rows):
        return Table(name, columns, [row[:-2] for row in rows], 2), []
    columns = (*columns, "low, over games", "high, over games")
    note = "Over games: games are drawn anew instead of seeds, which covers the choice of both."
    return Table(name, columns, rows, 2), [note]


def _kind(over_games: bool) -> str:
    return "bootstrap" if over_games else "stratified bootstrap"


def _likelier(over: Aggregation, x: str, y: str, games: Sequence[str]) -> tuple[str, str, Interval]:
    """Return the series whose runs more often score higher, the other, and how often."""
    chance = over.estimate(probability_of_improvement, over.raw(x, games), over.raw(y, games), reps=2_000)
    if chance.value >= 0.5:
        return x, y, chance
    return y, x, Interval(1 - chance.value, 1 - chance.high, 1 - chance.low)


def _title(name: str) -> str:
    return name[0].upper() + name[1:]
