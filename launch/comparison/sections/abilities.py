"""Section of abilities: what each memory is good at, by tasks that ask for one thing each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ....envs import ABILITIES, Task, find_task
from .. import plots
from ..grouping import Comparison
from ..names import name_of
from ..plots import Look
from ..report import Plot, Section
from ..scores import ScoreBoard
from ..statistics import Interval, as_scores, bootstrap, mean
from ..tables import Table, highest


def abilities(comparison: Comparison, board: ScoreBoard, style: Mapping[str, Look]) -> list[Section]:
    """Tabulate and draw task-normalised scores by ability; nothing for fewer than two tasks of memory."""
    tasks = _tasks(board)
    if len(tasks) < 2:
        return []
    labels = [label for label in comparison.series if any((game, label) in board.cells for game in tasks)]
    found = {label: [_estimate(board, game, label) for game in tasks] for label in labels}
    times = Counter(task.ability for task in tasks.values())
    names = [
        task.ability if times[task.ability] == 1 else f"{task.ability}, {name_of(game)}"
        for game, task in tasks.items()
    ]
    values = {label: [each and each.value for each in row] for label, row in found.items()}
    columns = enumerate(zip(*values.values(), strict=True), 1)
    bold = {(row, column) for column, cells in columns for row in highest(cells)}
    rows = [
        [label, *(plots.with_interval(each) if each else None for each in found[label])] for label in labels
    ]
    asked = (f"{task.ability}: {ABILITIES[task.ability]} ({name_of(game)})" for game, task in tasks.items())
    note = "; ".join(["Bold: the highest mean", *asked]) + "."
    table = Table(None, ("series", *names), rows, 1, note, bold=frozenset(bold))
    numbers = Table(
        "abilities",
        ("ability", "task", "series", "mean", "low", "high"),
        [
            [task.ability, name_of(game), label, *estimate]
            for row, (game, task) in enumerate(tasks.items())
            for label in labels
            if (estimate := found[label][row])
        ],
        3,
        csv_only=True,
    )
    text = (
        "Each task asks for one ability of a memory. 0 is random play, 1 the best return there is. Means "
        "over seeds, with 95% bootstrap intervals, rough where seeds are few."
    )
    plot = Plot("abilities", "By ability: means over seeds.", plots.abilities(values, names, style))
    return [Section("By ability", [text], plots=[plot], tables=[table, numbers])]


def _tasks(board: ScoreBoard) -> dict[str, Task]:
    """Return the tasks of memory that any series has a score of, by ability."""
    tasks = {game: find_task(game) for game, _ in board.cells}
    return dict(sorted(((game, task) for game, task in tasks.items() if task), key=lambda item: item[1]))


def _estimate(board: ScoreBoard, game: str, label: str) -> Interval | None:
    scores = board.cells.get((game, label), [])
    values = [score.normalized for score in scores if score.normalized is not None]
    return bootstrap(mean, as_scores([values])) if values else None
