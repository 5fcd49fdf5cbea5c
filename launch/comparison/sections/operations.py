"""Operations on the memory (`eval --memory`): what each changes in the returns of a series."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ...evaluation.returns import Difference
from .. import plots
from ..curves import Way, usual_way, way_of
from ..grouping import Comparison
from ..names import name_of
from ..report import Section
from ..runs import Evaluation, Run
from ..statistics import Interval, as_scores, bootstrap, mean
from ..tables import Cell, Table

_TEXT = (
    "The same agents, evaluated again with an operation on their memory in every episode (`eval --memory`): "
    "the mean return of an agent's episode less the untouched agent's, paired episode by episode from the "
    "same seeds. Where the whole interval is below 0, the operation costs something. Of each game those "
    "evaluations count that were made in the commonest way (protocol, greedy or sampled); scores with the "
    "state reset every N steps (`wipe-every:N`) are under 'With less memory'."
)
_INTERVALS = (
    "In brackets: the 95% bootstrap interval, over seeds, rough where they are few; of a single seed over "
    "its pairs of episodes, which says nothing of other seeds."
)


class _Change(NamedTuple):
    difference: float
    interval: tuple[float, float] | None
    """None of a single pair of episodes"""
    seeds: int


def operations(comparison: Comparison) -> list[Section]:
    """Tabulate paired differences by series and operation; no section without such evaluations."""
    changes = {
        (name_of(game), label): found
        for game in comparison.games
        for label, found in _of_game(comparison.runs_of(game)).items()
        if found
    }
    names = list(dict.fromkeys(name for found in changes.values() for name in found))
    if not names:
        return []
    shown = [
        [*cell, *(_shown(found[name]) if name in found else None for name in names)]
        for cell, found in changes.items()
    ]
    numbers: list[list[Cell]] = [
        [*cell, name, change.difference, *(change.interval or (None, None)), change.seeds]
        for cell, found in changes.items()
        for name, change in found.items()
    ]
    columns = ("game", "series", "operation", "difference", "low", "high", "seeds")
    tables = [
        Table(None, ("game", "series", *names), shown, 2, _INTERVALS),
        Table("memory-operations", columns, numbers, 3, csv_only=True),
    ]
    return [Section("With operations on the memory", [_TEXT], tables=tables)]


def _of_game(cells: dict[str, list[Run]]) -> dict[str, dict[str, _Change]]:
    """Return the changes by series and operation, of evaluations made in the commonest way."""
    way = usual_way(each for runs in cells.values() for run in runs for each in _with_operations(run))
    return {} if way is None else {label: _changes(runs, way) for label, runs in cells.items()}


def _with_operations(run: Run) -> list[Evaluation]:
    return [each for each in run.evaluations if each.operations]


def _changes(runs: Sequence[Run], way: Way) -> dict[str, _Change]:
    of_runs = [_newest(run, way) for run in runs]
    names = dict.fromkeys(name for found in of_runs for name in found)
    return {name: _over_seeds([found[name] for found in of_runs if name in found]) for name in names}


def _newest(run: Run, way: Way) -> dict[str, Difference]:
    """Return the differences at the highest step, of an operation with several the newest."""
    fitting = [each for each in _with_operations(run) if way_of(each) == way]
    last = max((each.step for each in fitting), default=0)
    found: dict[str, Difference] = {}
    for each in sorted(fitting, key=lambda each: each.time):
        if each.step == last:
            found |= each.operations
    return found


def _over_seeds(differences: Sequence[Difference]) -> _Change:
    if len(differences) == 1:
        return _Change(differences[0].mean, differences[0].interval, 1)
    values = [each.mean for each in differences]
    estimate = bootstrap(mean, as_scores([values]))
    return _Change(statistics.fmean(values), (estimate.low, estimate.high), len(values))


def _shown(change: _Change) -> str:
    return plots.with_interval(
        Interval(change.difference, *(change.interval or (change.difference, change.difference)))
    )
