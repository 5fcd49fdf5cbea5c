"""Observability gap: what a memory loses where it was trained with less of the game to see."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple

from ....envs import find_protocol, game_info
from .. import plots
from ..grouping import labelled
from ..names import join, name_of
from ..report import Section
from ..runs import Run
from ..scores import Score, of_equal_steps, own_scores
from ..statistics import Array, Interval, Scores, as_scores, bootstrap, mean
from ..tables import Cell, Table

_TEXT = (
    "The gap is a core's human-normalised score with one view of the game minus that of the same core "
    "trained, with all other options alike, on a view that shows less. Where a memory makes up for what is "
    "hidden the gap is small; so it is where nothing was learned with either view, which the scores show."
)
_INTERVALS = (
    "In brackets: the 95% bootstrap interval over seeds, where there are two or more of each; over several "
    "games, those that every series here has, games stay as they are."
)
_NAMED = 3
"""Means over so many games name them."""

ByView = Mapping[str, Sequence[Score]]


class _Gap(NamedTuple):
    games: Sequence[str]
    label: str
    views: tuple[str, str]
    """protocols, the second showing less"""
    scores: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]
    """with each view, by game and seed"""
    difference: float
    interval: tuple[float, float] | None
    """None where a view has one seed"""


TITLE = "Observability gap"


def observability(runs: Sequence[Run]) -> list[Section]:
    """Tabulate the gaps between views of each protocol; no section where no core has two views of a game."""
    tables, points = [], []
    for base, some in _by_base(runs).items():
        scores, what, unscored = own_scores(some)
        gaps = list(_gaps(_by_series(some, scores)))
        if gaps:
            points += [f"Scores under {base}, with each view: {what}.", *unscored]
            tables += [_table(gaps), _numbers(f"observability-{base}", gaps)]
        core_of = {label: run.core for label, run in labelled(some)}
        found = {(game, core_of[gap.label], gap.views) for gap in gaps for game in gap.games}
        points += _without_gap(some, scores, found)
    return [Section(TITLE, [_TEXT], points, tables=tables)] if tables or points else []


def _without_gap(
    runs: Sequence[Run], scores: Sequence[Score], found: Container[tuple[str, str, tuple[str, str]]]
) -> list[str]:
    """Say of each core that has two views of a game, one of which shows less, why it has no gap."""
    cells: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        cells[run.game, run.core][str(run.protocol)].append(run)
    scored = {score.run.path for score in scores if score.normalized is not None}
    lines = []
    for (game, core), by_view in sorted(cells.items()):
        for full, partial in filter(_shows_less, permutations(sorted(by_view), 2)):
            if (game, core, (full, partial)) in found:
                continue
            pairs = [
                (one, other, _differences(one, other))
                for one, other in product(by_view[full], by_view[partial])
            ]
            fewest = min((differing for *_, differing in pairs), key=len)
            if fewest:
                why = f"no two runs differ in the view alone, but in {', '.join(fewest)}, too"
            elif game_info(game).human is None:
                why = "no human score is known"
            elif not any(
                {one.path, other.path} <= scored for one, other, differing in pairs if not differing
            ):
                why = "one of them has no score of whole games"
            else:
                why = "they were scored after other numbers of steps"
            views = f"{_seen(full)} and {_seen(partial)}"
            lines.append(f"{core} on {name_of(game)}: no gap between {views}, since {why}.")
    return lines


def _differences(one: Run, other: Run) -> list[str]:
    """Return the settings in which two runs differ, with their values."""
    values = {
        name: (one.settings.get(name, "not known"), other.settings.get(name, "not known"))
        for name in sorted({*one.settings, *other.settings} - {"origin"})
    }
    return [f"{name.replace('_', ' ')} ({a}, {b})" for name, (a, b) in values.items() if str(a) != str(b)]


def _by_base(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of Atari games by the name of their protocol without what is seen."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.protocol is not None:
            found[run.protocol.partition("+")[0]].append(run)
    return found


def _by_series(runs: Sequence[Run], scores: Sequence[Score]) -> dict[str, dict[str, ByView]]:
    """Return the scores by series, game and view, one of each seed."""
    of_run = {score.run.path: score for score in scores if score.normalized is not None}
    found: dict[str, dict[str, dict[str, dict[object, Score]]]] = {}
    for label, run in labelled(runs):
        if run.path in of_run:
            cell = found.setdefault(label, {}).setdefault(run.game, {}).setdefault(str(run.protocol), {})
            cell.setdefault(run.path if run.seed is None else run.seed, of_run[run.path])
    return {
        label: {
            game: {view: list(seeds.values()) for view, seeds in views.items()}
            for game, views in games.items()
        }
        for label, games in found.items()
    }


def _gaps(series: Mapping[str, Mapping[str, ByView]]) -> Iterator[_Gap]:
    """Yield the gaps between any two views of which one shows less, of each game and over games."""
    names = {view for games in series.values() for views in games.values() for view in views}
    for views in sorted(
        filter(_shows_less, permutations(names, 2)), key=lambda pair: tuple(map(_sight, pair))
    ):
        of_pair = {label: _of_games(games, views) for label, games in series.items()}
        of_pair = {label: games for label, games in of_pair.items() if games}
        shared = sorted(set.intersection(*map(set, of_pair.values()))) if of_pair else []
        for label, games in of_pair.items():
            for game, (full, partial) in games.items():
                yield _gap([game], label, views, ([full], [partial]))
            if len(shared) > 1:
                both = [games[game] for game in shared]
                yield _gap(shared, label, views, ([full for full, _ in both], [less for _, less in both]))


def _of_games(
    games: Mapping[str, ByView], views: tuple[str, str]
) -> dict[str, tuple[list[float], list[float]]]:
    """Return the normalised scores with both views, of the games that have both after as many steps."""
    found = {}
    for game in sorted(games):
        full, partial = (games[game].get(view, ()) for view in views)
        if full and partial and of_equal_steps([*full, *partial]):
            found[game] = _values(full), _values(partial)
    return found


def _values(scores: Sequence[Score]) -> list[float]:
    return [score.normalized for score in scores if score.normalized is not None]


def _sight(protocol: str) -> tuple[float, float, float]:
    """Return how much is seen, in three respects."""
    rules = find_protocol(protocol)
    return -rules.frame_stack, rules.flicker, rules.blink


def _shows_less(views: tuple[str, str]) -> bool:
    return all(a <= b for a, b in zip(*map(_sight, views), strict=True))


def _seen(protocol: str) -> str:
    rules = find_protocol(protocol)
    screens = "1 screen" if rules.frame_stack == 1 else f"{rules.frame_stack} screens"
    black = f"black with probability {rules.flicker:.4g}" if rules.flicker else ""
    hidden = f"the ball hidden with probability {rules.blink:.4g}" if rules.blink else ""
    return ", ".join(filter(None, (screens, black, hidden)))


def _gap(
    games: Sequence[str],
    label: str,
    views: tuple[str, str],
    scores: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]],
) -> _Gap:
    found = bootstrap(_difference, *map(as_scores, scores))
    varies = all(len(seeds) > 1 for of_view in scores for seeds in of_view)
    return _Gap(games, label, views, scores, found.value, (found.low, found.high) if varies else None)


def _difference(full: Scores, partial: Scores) -> Array:
    return mean(full) - mean(partial)


def _means(gap: _Gap) -> list[float]:
    return [statistics.fmean(map(statistics.fmean, games)) for games in gap.scores]


def _games(gap: _Gap) -> str:
    if len(gap.games) == 1:
        return name_of(gap.games[0])
    return f"mean of {join(gap.games) if len(gap.games) <= _NAMED else f'{len(gap.games)} games'}"


def _table(gaps: Sequence[_Gap]) -> Table:
    rows: list[list[Cell]] = []
    for gap in gaps:
        shown = _games(gap), gap.label, *map(_seen, gap.views)
        interval = Interval(gap.difference, *(gap.interval or (gap.difference, gap.difference)))
        rows.append([*shown, *_means(gap), plots.with_interval(interval)])
    columns = ("game", "series", "view", "view that shows less", "score", "score with less", "gap")
    return Table(None, columns, rows, 4, _INTERVALS)


def _numbers(name: str, gaps: Sequence[_Gap]) -> Table:
    rows: list[list[Cell]] = []
    for gap in gaps:
        low, high = gap.interval or (None, None)
        counts = [sum(map(len, games)) for games in gap.scores]
        shown = _games(gap), gap.label, *gap.views
        rows.append([*shown, *_means(gap), gap.difference, low, high, *counts])
    columns = ("game", "series", "view", "partial_view", "score", "partial_score", "gap", "low", "high")
    return Table(name, (*columns, "runs", "partial_runs"), rows, 4, csv_only=True)
