"""Tasks of memory: the ability that each asks for, and the returns that frame an agent's."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

ABILITIES = {
    "delay": "say what was seen a few steps ago",
    "hold": "say at every step what was seen at the first",
    "recall in another order": "say what was seen, last first",
    "count": "say how often something was seen",
    "associate": "find again where something lay",
    "overwrite": "go by the last of many cues, not by those before",
    "overwrite one of many": "change one of several things remembered, keep the others",
    "navigate": "go by a cue seen at the start",
}
"""What tasks of memory ask for."""


class Task(NamedTuple):
    """What a task asks for, and what it pays."""

    ability: str
    """one of `ABILITIES`"""
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
