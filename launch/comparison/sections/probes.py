"""Section of probes: a table of every task and model beside the published numbers, and how they learned."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from ...probe.result import LOWER_IS_BETTER
from .. import plots
from ..curves import band, curve_of
from ..names import file_name
from ..plots import looks
from ..probes import Probe, published
from ..report import Plot, Section
from ..tables import Cell, Table

_BLANK = (
    "Where published is blank, the papers do not have that core on that task with these options, or the run "
    "was not trained as they did it, but with --updates or other settings of its own."
)


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
        ordered = sorted(
            models.items(), key=lambda each: _mean(each[1]), reverse=metric not in LOWER_IS_BETTER
        )
        for _, seeds in ordered:
            rows.append(_row(seeds, metric, [run.value for run in seeds]))
        for _, seeds in ordered:
            if printed := [run.print_accuracy for run in seeds if run.print_accuracy is not None]:
                rows.append(_row(seeds, "print_accuracy", printed))
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
        "best evaluation counts, as published. Print accuracies are of the best validation. The curves are "
        "of evaluations while it learned, of sequences as long as they were then."
    ]
    named = [(run, name) for run in runs for name in (run.metric, "print_accuracy")]
    sources = sorted({reference[1] for run, name in named if (reference := _published(run, name))})
    notes = [f"Published: {'; '.join(sources)}."] if sources else []
    if any(row[-1] is None for row in rows):
        notes.append(_BLANK)
    note = " ".join(notes)
    return Section("Probes", text, unended, drawn, [Table("probes", columns, rows, 3, note, small=True)])


def _row(seeds: Sequence[Probe], metric: str, values: Sequence[float]) -> list[Cell]:
    """Return the row of a series: `values` of a metric, one of each seed, and the published one."""
    first, reference = seeds[0], _published(seeds[0], metric)
    numbers: tuple[Cell, ...] = (statistics.fmean(values), min(values), max(values), len(values))
    return [first.task, first.series, metric, *numbers, reference[0] if reference else None]


def _published(run: Probe, metric: str) -> tuple[float, str] | None:
    """Return the published value and its source; None if the run has settings of its own."""
    return published().get((run.task, metric, run.series))


def _mean(seeds: Sequence[Probe]) -> float:
    return statistics.fmean(run.value for run in seeds)
