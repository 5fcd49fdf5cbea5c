"""Read whatever runs are named: of training and of probes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from .probes import Probe, is_probe, read_probe
from .runs import Run, find_runs, read_run

_Read = TypeVar("_Read", Run, Probe)


def read_runs(arguments: Sequence[str]) -> tuple[list[Run], list[Probe], list[str]]:
    """Read the runs that paths, globs and trees name; and a line for each thing that is wrong with them."""
    paths, problems = find_runs(arguments)
    runs, probed = [], []
    for path in paths:
        if is_probe(path):
            probe = read_probe(path)
            if isinstance(probe, Probe):
                probed.append(probe)
            else:
                problems.append(probe)
            continue
        run, wrong = read_run(path)
        problems += wrong
        if run is not None:
            runs.append(run)
    return _once(runs, _log_of, problems), _once(probed, _experiment_of, problems), problems


def _once(runs: Iterable[_Read], key: Callable[[_Read], Hashable], problems: list[str]) -> list[_Read]:
    """Leave out runs that are another one again, which would count as one more seed, and say so."""
    first: dict[Hashable, _Read] = {}
    for run in runs:
        earlier = first.setdefault(key(run), run)
        if earlier is not run:
            problems.append(f"{run.path}: left out; it is {earlier.path} again, of the same seed")
    return list(first.values())


def _log_of(run: Run) -> Hashable:
    """Return what a copy of a run has in common with it alone, the time of its last row among others."""
    if not run.rows:
        return run.path
    settings = sorted(run.settings.items())
    return run.game, run.core, str(settings), run.protocol, run.seed, len(run.rows), str(run.rows[-1])


def _experiment_of(run: Probe) -> Hashable:
    """Return what decides all of a probe: it is the same wherever it was trained."""
    return run.task, run.metric, run.series, run.seed
