"""The sections of a report on runs: each from the comparison and its scores to text, plots and tables."""

from __future__ import annotations

import statistics as plain
from collections.abc import Mapping, Sequence
from itertools import combinations

from ..units import format_steps
from . import plots
from .curves import Band, Curve, band, curve_of, is_whole
from .differences import ABOUT_THE_PUBLISHED, differences
from .grouping import Comparison
from .plots import Look
from .published_report import published_pair, score_text
from .relative import BUDGETS, is_published, relative_improvement
from .report import Plot, Section
from .scores import ScoreBoard
from .statistics import (
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
from .tables import Cell, Table

MEMORY = {
    "write_strength": "write strength β (0 keeps what is stored, 1 replaces it)",
    "recurrent_write_strength": "write strength β of Delta RNN's recurrent matrix",
    "fast_weight_norm": "Frobenius norm of a head's fast weights",
}
"""The logged metrics of fast-weight memories, and what they are."""


def left_out(comparison: Comparison, board: ScoreBoard, problems: Sequence[str]) -> Section:
    lines = list(dict.fromkeys([*problems, *comparison.left_out, *board.left_out]))
    title = "Left out, and wrong with the runs"
    return Section(title, points=lines) if lines else Section(title, ["Nothing."], folded=True)


def conclusions(comparison: Comparison, board: ScoreBoard) -> list[str]:
    """What the numbers below say, as far as they say anything."""
    over = Aggregation(comparison, board)
    if not over.games or not over.series:
        return []
    unit = "human-normalised score" if over.normalized else board.kind
    ranked = sorted(((bootstrap(iqm, over.of(s)), s) for s in over.series), reverse=True)
    lines = [
        f"Highest interquartile mean of the {unit}: "
        + "; ".join(f"{label} {plots.number(e.value)} [{plots.number(e.low)}, {plots.number(e.high)}]"
                    for e, label in ranked)
        + "."
    ]  # fmt: skip
    if len(ranked) > 1:
        first, second = ranked[0][1], ranked[1][1]
        x, y = (over.of(label, over.shared, raw=True) for label in (first, second))
        chance = bootstrap(probability_of_improvement, x, y, reps=2_000)
        open_ = " Which of the two is better stays open." if chance.low <= 0.5 else ""
        lines.append(
            f"A run of {first} scores higher than one of {second} with probability {chance.value:.2f} "
            f"[{chance.low:.2f}, {chance.high:.2f}].{open_}"
        )
    return lines


def learning(comparison: Comparison, style: Mapping[str, Look]) -> Section:
    """The metric that a run is watched by, over steps and over seconds, for every game."""
    drawn, rows, short = [], [], []
    for game in comparison.games:
        for seconds in (False, True):
            curves, bands = _curves(comparison, game, "game_return", seconds)
            if not curves:
                continue
            axis = "time" if seconds else "steps"
            drawn.append(
                Plot(
                    f"learning-{_file(game)}-{axis}",
                    f"{name_of(game)}: training return by {'wall-clock time' if seconds else 'agent steps'}.",
                    plots.learning_curves(
                        curves, bands, style, "training time" if seconds else "agent steps",
                        "return, last 100 games", name_of(game), seconds,
                    ),
                )
            )  # fmt: skip
            if not seconds:
                rows += _curve_rows(game, bands)
                short += _short(comparison, game, curves, bands)
    text = [
        "Mean return of the last 100 training games, with sampled actions. Thin lines are seeds; the bold line is "
        "their mean, and the band reaches from the lowest to the highest of them.",
        "Time is that of training alone, without stops. It compares cores only where all ran on the same machine with "
        "nothing beside them.",
        *short,
    ]
    table = Table("curves", ("game", "series", "step", "mean", "lowest", "highest", "seeds"), rows, 2, csv_only=True)
    return Section("Learning curves", text, plots=drawn, tables=[table])


def _curves(
    comparison: Comparison, game: str, metric: str, seconds: bool = False
) -> tuple[dict[str, list[Curve]], dict[str, Band]]:
    curves: dict[str, list[Curve]] = {}
    for label in comparison.series_of(game):
        found = [curve_of(run.rows, metric, seconds) for run in comparison.cells[game, label]]
        if seeds := [curve for curve in found if curve is not None]:
            curves[label] = seeds
    return curves, {label: band(_whole(seeds)) for label, seeds in curves.items()}


def _whole(seeds: Sequence[Curve]) -> list[Curve]:
    """By wall-clock all seeds count: a slow one is not a short one, but the mean ends where the first ends."""
    return [curve for curve in seeds if is_whole(curve, seeds)] or list(seeds)


def _short(
    comparison: Comparison, game: str, curves: Mapping[str, Sequence[Curve]], bands: Mapping[str, Band]
) -> list[str]:
    return [
        f"{name_of(game)}, {label}: {len(seeds) - bands[label].seeds} of {len(seeds)} seeds ended early and are drawn, "
        "but are not in the mean."
        for label, seeds in curves.items()
        if bands[label].seeds < len(seeds)
    ]


def _curve_rows(game: str, bands: Mapping[str, Band]) -> list[list[Cell]]:
    return [
        [game, label, round(x), float(middle), float(low), float(high), band_.seeds]
        for label, band_ in bands.items()
        for x, middle, low, high in zip(band_.x, band_.mean, band_.low, band_.high, strict=True)
    ]


def scores(comparison: Comparison, board: ScoreBoard) -> Section:
    """Every game and series: mean over seeds with its interval, the seeds, and what was published."""
    rows: list[list[Cell]] = []
    bold = set()
    for game in comparison.games:
        cells = [(label, board.cells[game, label]) for label in comparison.series if (game, label) in board.cells]
        best = max((plain.fmean(s.value for s in found) for _, found in cells), default=None)
        for label, found in cells:
            values = [score.value for score in found]
            estimate = bootstrap(mean, as_scores([values]))
            normalized = [score.normalized for score in found if score.normalized is not None]
            if estimate.value == best and len(cells) > 1:
                bold.add((len(rows), 2))
            rows.append(
                [
                    *(name_of(game), label, estimate.value),
                    f"{plots.number(estimate.low)} to {plots.number(estimate.high)}" if len(values) > 1 else None,
                    "  ".join(plots.number(value) for value in values),
                    len(values),
                    format_steps(round(plain.fmean(s.step for s in found), -3)),
                    f"{plain.fmean(normalized):.1%}" if normalized else None,
                    *(score_text(game, comparison.core_of[label], millions) for millions in BUDGETS),
                ]
            )
    names = ("game", "series", "mean", "95% interval", "seeds' scores", "seeds", "steps", "human-normalised",
             *(f"published {millions}M" for millions in BUDGETS))  # fmt: skip
    keep = [i for i in range(len(names)) if i < 7 or any(row[i] is not None for row in rows)]
    table = Table(
        "scores",
        [names[i] for i in keep],
        [[row[i] for i in keep] for row in rows],
        2,
        "Bold: the highest mean of a game. Intervals: 95% bootstrap over seeds; of three seeds they are rough."
        + (" Published: mean ± standard deviation of five evaluations of one seed." if len(keep) > 8 else ""),
        frozenset(bold),
    )
    text = [board.description]
    return Section("Scores", text, tables=[table] if rows else [])


class Aggregation:
    """Scores of the games that all series share, human-normalised where they are known, else of one game raw."""

    def __init__(self, comparison: Comparison, board: ScoreBoard) -> None:
        series = [s for s in comparison.series if any(label == s for _, label in board.cells)]
        shared = [g for g in comparison.games if all((g, label) in board.cells for label in series)]
        normal = [
            game
            for game in shared
            if all(s.normalized is not None for label in series for s in board.cells[game, label])
        ]
        self.normalized = bool(normal) and is_published(normal[0])
        self.series = series
        self.games = normal if self.normalized else shared[:1] if len(shared) == 1 else []
        self.unshared = [game for game in comparison.games if game not in shared]
        self.unnormalized = [game for game in shared if game not in normal] if self.normalized else []
        self.shared = shared
        self._board = board

    def of(self, label: str, games: Sequence[str] | None = None, raw: bool = False) -> Scores:
        values = []
        for game in self.games if games is None else games:
            found = self._board.cells[game, label]
            values.append(
                [
                    score.normalized if self.normalized and not raw and score.normalized is not None else score.value
                    for score in found
                ]
            )
        return as_scores(values)


def aggregates(comparison: Comparison, board: ScoreBoard, style: Mapping[str, Look]) -> Section:
    """Median, IQM, mean and optimality gap over all games and seeds."""
    title = "Aggregate scores"
    over = Aggregation(comparison, board)
    notes = _aggregation_notes(over)
    if not over.games or not over.series:
        return Section(title, [*notes, "There is nothing to aggregate."])
    unit = "human-normalised score" if over.normalized else board.kind
    kinds = {"IQM": iqm, "median": median, "mean": mean}
    if over.normalized:
        kinds["optimality gap"] = optimality_gap
    rows: list[list[Cell]] = []
    drawn = []
    for name, statistic in kinds.items():
        estimates = [(label, bootstrap(statistic, over.of(label))) for label in over.series]
        rows += [[name, label, *estimate] for label, estimate in estimates]
        if name in ("IQM", "median"):
            drawn.append(
                Plot(
                    f"aggregate-{name.lower()}",
                    f"{name} over {_count(len(over.games), 'game')} with 95% stratified bootstrap intervals.",
                    plots.intervals(
                        [(label, estimate, style[label].color) for label, estimate in estimates],
                        f"{name} of {_count(len(over.games), 'game')}",
                        unit,
                    ),
                )
            )
    text = [
        "IQM is the mean of the middle half of all seeds of all games; median and mean are over games, of the means over "
        "seeds"
        + ("; the optimality gap is how far runs fall short of human play" if over.normalized else "")
        + ". Bars are 95% intervals of a stratified bootstrap: seeds are drawn anew within each game (Agarwal et al. "
        "2021, as in rliable).",
        *notes,
    ]
    table = Table("aggregates", ("statistic", "series", unit, "low", "high"), rows, 2)
    return Section(title, text, plots=drawn, tables=[table])


def _aggregation_notes(over: Aggregation) -> list[str]:
    notes = []
    if over.unshared:
        notes.append(f"Without {_join(over.unshared)}, which not every series has a score of.")
    if over.unnormalized:
        notes.append(f"Without {_join(over.unnormalized)}, for which no score of a human or of whole games is known.")
    if not over.normalized and len(over.shared) == 1:
        notes.append("It is one game without human-normalised scores, so the unit is its own return.")
    elif not over.normalized and len(over.shared) > 1:
        notes.append("Its games have no human-normalised scores, and returns of different games have no common unit.")
    if over.series and over.games and any(len(game) < 2 for label in over.series for game in over.of(label)):
        notes.append("Where a game has one seed the interval does not know how seeds vary: it is too narrow.")
    counts = {len(game) for label in over.series for game in over.of(label)} if over.games else set()
    if len(counts) > 1:
        notes.append("Numbers of seeds differ; in the IQM games with more seeds weigh more.")
    return notes


def improvement(comparison: Comparison, board: ScoreBoard, style: Mapping[str, Look]) -> Section:
    """The chance that a run of one series beats one of another, for every pair."""
    title = "Probability of improvement"
    over = Aggregation(comparison, board)
    if not over.shared or len(over.series) < 2:
        return Section(title, ["It needs two series with scores of the same game."])
    rows: list[list[Cell]] = []
    bars = []
    for baseline, better in combinations(over.series, 2):
        x, y = over.of(better, over.shared, raw=True), over.of(baseline, over.shared, raw=True)
        estimate = bootstrap(probability_of_improvement, x, y, reps=2_000)
        rows.append([better, baseline, *estimate])
        bars.append((f"{better} over {baseline}", estimate, style[better].color))
    text = [
        "The chance that a run of the first series scores higher than one of the second in the same game, mean over "
        f"{_count(len(over.shared), 'game')}; a tie counts half. An interval that holds 0.5 leaves open which is better. It says "
        "nothing of by how much.",
    ]
    plot = Plot(
        "probability-of-improvement",
        "P(first > second) with 95% stratified bootstrap intervals.",
        plots.intervals(bars, "Probability of improvement", "P(first scores higher)", reference=0.5),
    )
    table = Table("probability-of-improvement", ("series", "over", "probability", "low", "high"), rows, 2)
    return Section(title, text, plots=[plot], tables=[table])


def relative(comparison: Comparison, board: ScoreBoard) -> list[Section]:
    """The publication's bar charts from our runs, and beside each the same from its own table."""
    sections = []
    rows: list[list[Cell]] = []
    for baseline, better in combinations(comparison.series, 2):
        changes = []
        for game in comparison.games:
            if (game, better) in board.cells and (game, baseline) in board.cells:
                new, old = (plain.fmean(s.value for s in board.cells[game, label]) for label in (better, baseline))
                changes.append((game, relative_improvement(new, old)))
                rows.append([name_of(game), better, baseline, new, old, changes[-1][1]])
        if not changes or all(change is None for _, change in changes):
            continue
        changes.sort(key=lambda item: -(item[1] if item[1] is not None else float("-inf")))
        drawn = [
            Plot(
                f"relative-{_file(better)}-over-{_file(baseline)}",
                f"Our runs: {better} relative to {baseline}.",
                plots.improvements(
                    [(name_of(game), change) for game, change in changes], f"{better} over {baseline}: our runs",
                    f"relative improvement of the {board.kind}", better, baseline,
                ),
            )
        ]  # fmt: skip
        cores = comparison.core_of[better], comparison.core_of[baseline]
        games = [game for game, _ in changes if is_published(game)]
        if cores[0] != cores[1] and games:
            drawn += published_pair(*cores, games, prefix="beside-")
        sections.append(Section(f"{better} over {baseline}", plots=drawn, folded=len(sections) > 2))
    text = [
        "(score − baseline) / baseline, in percent, of means over seeds: the publication's Figures 1 to 12 draw the "
        "same of its own scores. Axes are linear to ±100 % and logarithmic beyond.",
    ]
    if any(row[-1] is None for row in rows):
        text.append(
            "Where the baseline's mean is not positive a percentage has no meaning: there is no bar, and no chart if "
            "that holds for every game. The table has the two means."
        )
    table = Table(
        "relative-improvement", ("game", "series", "baseline", "score", "baseline's score", "improvement, %"), rows, 3
    )
    return [Section("Relative improvement", text, tables=[table] if rows else []), *sections]


def memory(comparison: Comparison, style: Mapping[str, Look]) -> Section:
    """What the fast weights do in training: curves of every logged memory metric, and where they end."""
    drawn, rows = [], []
    for game in comparison.games:
        for metric, meaning in MEMORY.items():
            curves, bands = _curves(comparison, game, metric)
            if not curves:
                continue
            drawn.append(
                Plot(
                    f"memory-{_file(game)}-{metric.replace('_', '-')}",
                    f"{name_of(game)}: {meaning}.",
                    plots.learning_curves(
                        curves, bands, style, "agent steps", metric.replace("_", " "),
                        f"{name_of(game)}: {metric.replace('_', ' ')}",
                    ),
                )
            )  # fmt: skip
            for label, seeds in curves.items():
                first, last = [c.y[0] for c in seeds], [c.y[-1] for c in seeds]
                rows.append(
                    [name_of(game), label, metric.replace("_", " "), plain.fmean(first), plain.fmean(last),
                     float(min(last)), float(max(last))]
                )  # fmt: skip
    text = [
        "Means over updates, heads and layers, as the log has them. A norm that only grows means that old "
        "associations stay and interfere; a write strength near 1 that every write replaces what its key held."
    ]
    if not drawn:
        return Section("Memory", ["None of these series has fast weights."])
    columns = ("game", "series", "metric", "at first", "at the end", "lowest seed", "highest seed")
    return Section("Memory", text, plots=drawn, tables=[Table("memory", columns, rows, 3)])


def published_differences(comparison: Comparison, board: ScoreBoard) -> Section:
    """Every difference to the published numbers, and what those numbers are."""
    lines = differences(comparison, board)
    if not any(is_published(game) for game in comparison.games):
        return Section("Differences from the published numbers", lines)
    return Section(
        "Differences from the published numbers",
        ["How our scores are made otherwise than those of Irie et al. (2021), Tables 9 and 10:"],
        points=[*lines, *(f"Published: {line}" for line in ABOUT_THE_PUBLISHED)],
    )


def runs(comparison: Comparison, board: ScoreBoard) -> Section:
    """Every run that is in, its settings once."""
    scored = {score.run.path: score for found in board.cells.values() for score in found}
    rows: list[list[Cell]] = []
    for (game, label), members in sorted(comparison.cells.items()):
        for run in members:
            score = scored.get(run.path)
            minutes = curve_of(run.rows, "sps", seconds=True)
            rows.append(
                [
                    name_of(game), label, str(run.path), "" if run.seed is None else str(run.seed), run.last_step or None,
                    float(minutes.x[-1]) / 60 if minutes else None, score.value if score else None,
                    run.versions.get("commit"), run.versions.get("torch"),
                ]
            )  # fmt: skip
    columns = ("game", "series", "run", "seed", "steps", "minutes", "score", "commit", "torch")
    table = Table("runs", columns, rows, 4)
    return Section("Runs", _settings(comparison), tables=[table], folded=True)


def _settings(comparison: Comparison) -> list[str]:
    """The settings that all runs share, in a sentence."""
    every = [run.settings for run in comparison.runs()]
    shared = {
        name: value
        for name, value in (every[0] if every else {}).items()
        if all(str(other.get(name)) == str(value) for other in every) and name not in ("steps", "origin")
    }
    named = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shared.items())
    return [f"Settings that all runs share: {named}."] if named else []


def name_of(game: str) -> str:
    """A game as a title; of an environment's id the part after its module."""
    return game.split(":")[-1].split("/")[-1].removeprefix("popgym-")


def _file(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-" else "-" for c in name_of(name)).strip("-")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _join(games: Sequence[str]) -> str:
    return ", ".join(name_of(game) for game in games)


