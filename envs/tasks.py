"""Tasks of memory: the ability that each asks for, and the returns that frame an agent's."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """What a task asks for, and what it pays."""

    ability: str
    """in a word: delay, hold, count, ..."""
    random: float
    """mean return of uniform random play: by the rules, or of 2,000 episodes (standard error below 0.01)"""
    best: float
    """return that none exceeds"""


def find_task(env_id: str) -> Task | None:
    """Return what is known of `popgym:popgym-RepeatFirstEasy-v0` and others; None if it is not listed."""
    return _tasks().get(env_id.rpartition(":")[2])


def task_normalized(env_id: str, score: float) -> float | None:
    """Scale a return to 0 for random play and 1 for the best there is; None where these are not known."""
    task = find_task(env_id)
    return None if task is None else (score - task.random) / (task.best - task.random)


@functools.cache
def _tasks() -> dict[str, Task]:
    with Path(__file__).with_name("tasks.csv").open(newline="") as file:
        return {
            row["task"]: Task(row["ability"], float(row["random"]), float(row["best"]))
            for row in csv.DictReader(file)
        }
