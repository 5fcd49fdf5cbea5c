"""Section of probes: a table of every task and model beside the published numbers, and how they learned."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from ...probe.result import LEAST
from .. import plots
from ..curves import band, curve_of
from ..names import file_name
from ..plots import looks
from ..probes import Probe, published
from ..report import Plot, Section
from ..tables import Cell, Table


def probes(runs: Sequence[Probe]) -> Section:
    """Compare runs by task: the mean over seeds of what each reached, and the published value."""
    tasks: defaultdict[tuple[str, str], defaultdict[str, list[Probe]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        tasks[run.task, run.metric][run.series].append(run)
    rows: list[list[Cell]] = []
    drawn = []
    for (task, metric), models in sorted(tasks.items()):
        ordered = sorted(models.items(), key=lambda each: _mean(each[1]), reverse=metric not in LEAST)
        for model, seeds in ordered:
            rows.append(_row(model, seeds))
        curves = {model: [curve_of(run.rows, metric) for run in seeds] for model, seeds in ordered}
        figures = plots.learning_curves(
            curves,
            {model: band(seeds) for model, seeds in curves.items()},
            looks({model: seeds[0].core for model, seeds in ordered}),
            "updates",
            metric.replace("_", " "),
            task,
        )
        name = f"probe-{file_name(task)}-{metric}"
        drawn.append(Plot(name, f"{task}: {metric.replace('_', ' ')}.", figures))
    unended = [
        f"{run.path} has not ended; its best evaluation so far counts" for run in runs if not run.ended
    ]
    columns = ("task", "model", "metric", "mean", "lowest", "highest", "seeds", "published")
    text = [
        "Of a loss the least is best, of an accuracy the most. Where a task has a test, the weights with the "
        "best validation are tested, and where sequences grow, full-length ones at the end; elsewhere the "
        "best evaluation counts, as published. The curves are of evaluations while it learned, of sequences "
        "as long as they were then."
    ]
    sources = sorted({known[1] for run in runs if (known := _published(run))})
    note = f"Published: {'; '.join(sources)}." if sources else ""
    return Section("Probes", text, unended, drawn, [Table("probes", columns, rows, 3, note, small=True)])


def _row(model: str, seeds: Sequence[Probe]) -> list[Cell]:
    values, first = [run.value for run in seeds], seeds[0]
    known = _published(first)
    extremes: tuple[Cell, ...] = (min(values), max(values), len(values))
    return [first.task, model, first.metric, _mean(seeds), *extremes, known[0] if known else None]


def _published(run: Probe) -> tuple[float, str] | None:
    """Return the published value and its source; None if the run has settings of its own."""
    return published().get((run.task, run.metric, run.series))


def _mean(seeds: Sequence[Probe]) -> float:
    return statistics.fmean(run.value for run in seeds)
