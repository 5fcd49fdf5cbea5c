"""Group runs: those that may stand side by side, and those that may be averaged, differing in seed alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..runs.options import OPTIONS
from ..units import format_steps
from .names import PAPER_CORES, join, name_of
from .runs import TRAINED_UNDER, Run

_LACKING = "none"
_NAMED = 4
"""So many series of one seed are named; more are counted."""

Cell = tuple[str, str]
"""A game and the label of a series."""


@dataclass
class Comparison:
    """Runs by game and series. A series is a core, with its settings where runs of one game differ in any."""

    protocol: str | None
    """the protocol of all its Atari runs; None if there are none"""
    games: list[str]
    series: list[str]
    core_of: dict[str, str]
    cells: dict[Cell, list[Run]]
    left_out: list[str] = field(default_factory=list)
    """one line for each run that is not in, with the reason"""
    notes: list[str] = field(default_factory=list)
    """caveats about those that are"""

    def runs(self) -> list[Run]:
        return [run for runs in self.cells.values() for run in runs]

    @property
    def is_mixed(self) -> bool:
        """Whether there are runs of Atari games and of environments without a protocol."""
        return len({run.protocol is None for run in self.runs()}) > 1

    def runs_of(self, game: str) -> dict[str, list[Run]]:
        """Return the runs of a game by series."""
        return {label: self.cells[game, label] for label in self.series if (game, label) in self.cells}


def compare(runs: Sequence[Run]) -> Comparison:
    """Group runs. Those of a rarer protocol are left out; other settings make series of their own."""
    protocol = commonest_protocol([run.protocol for run in runs if run.protocol])
    left_out = [
        f"{run.path}: left out of the scores, which are under {protocol}: it was trained under {run.protocol}"
        for run in runs
        if run.protocol not in (None, protocol)
    ]
    included = [run for run in runs if run.protocol in (None, protocol)]
    games = sorted({run.game for run in included})
    differing = _differing(included)
    usual = _usual(included, differing)
    cells: dict[Cell, list[Run]] = defaultdict(list)
    core_of = {}
    included.sort(key=lambda run: (run.seed is None, run.seed or 0, str(run.path)))
    labels = _labels(included, differing, usual)
    for label, run in zip(labels, included, strict=True):
        core_of[label] = run.core
        same = next((r for r in cells[run.game, label] if r.seed is not None and r.seed == run.seed), None)
        if same is None:
            cells[run.game, label].append(run)
        else:
            left_out.append(f"{run.path}: left out, it repeats seed {run.seed} of {same.path}")
    comparison = Comparison(
        protocol=protocol,
        games=games,
        series=sorted(core_of, key=lambda label: (*_rank(core_of[label]), label)),
        core_of=core_of,
        cells=dict(cells),
        left_out=left_out,
    )
    comparison.notes = _notes(comparison, differing, usual)
    return comparison


def labelled(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Return runs, whatever their protocols, with the labels of their series, in the order of a report."""
    runs = sorted(runs, key=lambda run: str(run.path))
    differing = _differing(runs)
    usual = _usual(runs, differing)
    named = zip(_labels(runs, differing, usual), runs, strict=True)
    return sorted(named, key=lambda pair: (*_rank(pair[1].core), pair[0], pair[1].seed or 0, pair[1].path))


def _rank(core: str) -> tuple[int, str]:
    """Rank cores as the publication does; others follow by name."""
    order = list(PAPER_CORES)
    return (order.index(core) if core in PAPER_CORES else len(order), core)


def commonest_protocol(protocols: Iterable[str]) -> str | None:
    """Return the most frequent one; if several tie, the publication's, or else the first by name; None if
    there is none."""
    counts = Counter(protocols)
    return min(counts, key=lambda name: (-counts[name], name != TRAINED_UNDER, name), default=None)


def _differing(runs: Sequence[Run]) -> list[str]:
    """List the settings that take more than one value among the runs of some game."""
    by_game: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_game[run.game].append(run)
    names = {name for group in by_game.values() for name in _varying(run.settings for run in group)}
    return sorted(names, key=lambda name: (name != "steps", name))


def _varying(settings: Iterable[Mapping[str, Any]]) -> set[str]:
    values: dict[str, set[str]] = defaultdict(set)
    every = list(settings)
    for name in {name for one in every for name in one}:
        values[name] = {str(one.get(name, _LACKING)) for one in every if name in one or _knows(one, name)}
    return {name for name, seen in values.items() if len(seen) > 1}


def _knows(settings: Mapping[str, Any], name: str) -> bool:
    """Whether a run that lacks a setting is known to have been without it: another version's option."""
    return name not in OPTIONS and settings.get("origin") != "unknown"


def _usual(runs: Sequence[Run], differing: Sequence[str]) -> dict[str, str]:
    """Return what more than half of those have that have any: series do not name it.

    Steps are always named; so is what some runs of a core lack, which would pass for having the usual.
    """
    usual = {}
    for name in set(differing) - {"core_options", "steps"}:
        having = [run for run in runs if name in run.settings]
        cores = {run.core for run in having}
        (value, count), *_ = Counter(_show(name, run.settings) for run in having).most_common(1)
        if 2 * count > len(having) == sum(run.core in cores for run in runs):
            usual[name] = value
    return usual


def _labels(runs: Sequence[Run], differing: Sequence[str], usual: Mapping[str, str]) -> list[str]:
    """Label runs by core and settings, and by code where it is edited or repeats a seed of other code."""
    labels = [_label(run, differing, usual) for run in runs]
    codes: dict[str, set[str | None]] = defaultdict(set)
    first: dict[tuple[Any, ...], str] = {}
    others = set()
    for label, run in zip(labels, runs, strict=True):
        code = _code(run)
        codes[label].add(code)
        if code and run.seed is not None:
            before = first.setdefault((label, run.game, run.protocol, run.seed), code)
            others |= {(label, code)} if code != before else set()
    for label, found in codes.items():
        if len(found) > 1:
            others |= {(label, code) for code in found if code and "-dirty-" in code}
    return [
        f"{label} · code {_code(run)}" if (label, _code(run)) in others else label
        for label, run in zip(labels, runs, strict=True)
    ]


def _code(run: Run) -> str | None:
    """Return the commit that a run was trained at or, of an installed package, its version."""
    code: str | None = run.versions.get("commit") or run.versions.get("deltabeast")
    return code


def unusual_settings(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return for each run the settings that set it apart, as in the label of its series: neither the core's
    options nor steps.
    """
    differing = [name for name in _differing(runs) if name not in ("core_options", "steps")]
    usual = _usual(runs, differing)
    return [_unusual(run, differing, usual) for run in runs]


def _unusual(run: Run, differing: Sequence[str], usual: Mapping[str, str]) -> dict[str, str]:
    settings = {name: _show(name, run.settings) for name in differing if name in run.settings}
    return {name: shown for name, shown in settings.items() if usual.get(name) != shown}


def _label(run: Run, differing: Sequence[str], usual: Mapping[str, str]) -> str:
    unusual = _unusual(run, differing, usual)
    options = unusual.pop("core_options", "default")
    of_core = [] if options == "default" else [options]
    return " · ".join([run.core, *of_core, *(f"{_words(name)} {shown}" for name, shown in unusual.items())])


def _words(name: str) -> str:
    return name.replace("_", " ")


def _show(name: str, settings: Mapping[str, Any]) -> str:
    value = settings[name]
    if name == "steps" and isinstance(value, int):
        return format_steps(value)
    return str(float(f"{value:.6g}") if isinstance(value, float) else value)


def _notes(comparison: Comparison, differing: Sequence[str], usual: Mapping[str, str]) -> list[str]:
    notes = []
    if differing:
        named = ", ".join(_words(name) for name in differing)
        notes.append(
            f"Runs of the same game differ in {named}. Each combination is a series of its own: the "
            "difference between two such series is not one of their cores alone."
        )
    if usual:
        named = ", ".join(f"{_words(name)} {usual[name]}" for name in differing if name in usual)
        notes.append(f"Series that do not say otherwise have {named}.")
    between = _varying(run.settings for run in comparison.runs()) - set(differing)
    if between:
        named = ", ".join(sorted(_words(name) for name in between))
        notes.append(f"Runs of different games differ in {named}; those of each game agree.")
    single = [
        f"{label} on {name_of(game)}" for (game, label), runs in comparison.cells.items() if len(runs) == 1
    ]
    if single:
        which = ", ".join(single)
        if len(single) == len(comparison.cells) > 1:
            which = "every series"
        elif len(single) > _NAMED:
            each = ", counted in each game" if len(comparison.games) > 1 else ""
            which = f"{len(single)} of {len(comparison.cells)} series{each}"
        notes.append(f"One seed only, so no spread over seeds: {which}.")
    if len({run.versions.get("commit") for run in comparison.runs()} - {None}) > 1:
        notes.append("The runs were trained by different commits of deltabeast; the table of runs has them.")
    missing = [
        f"{label} ({join(games)})"
        for label in comparison.series
        if (games := [game for game in comparison.games if (game, label) not in comparison.cells])
    ]
    if missing:
        notes.append(f"Not every series has runs of every game. Missing: {'; '.join(missing)}.")
    return notes
