"""Read whatever runs are named: of training and of probes."""

from __future__ import annotations

from collections.abc import Sequence

from .probes import Probe, is_probe, read_probe
from .runs import Run, find_runs, read_run


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
    return runs, probed, problems
