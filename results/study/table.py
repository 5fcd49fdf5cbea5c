"""The study as one table: what each row reached, and how soon, task by task.

Usage: python results/study/table.py RUNS OUT
Adds to OUT/scores.csv, draws OUT/<task>.png, prints the table.
A score is the mean return of the last 100 training games, from 0 for random play to 1 for the best there is.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deltabeast.envs import task_normalized
from deltabeast.launch.comparison import plots
from deltabeast.launch.comparison.curves import curve_of
from deltabeast.launch.comparison.statistics import as_scores, bootstrap, mean
from deltabeast.launch.runs.directory import read_config
from deltabeast.launch.runs.log import read_rows

TASKS = ("overwrite", "delay")
LEARNED = 0.8
"""the score whose first step counts"""


class Result(NamedTuple):
    """What a run reached."""

    task: str
    row: str
    seed: int
    score: float
    step: int | None
    """at which its score first was LEARNED; None if it never was"""


def main(runs: Path, out: Path) -> None:
    new = [found for path in runs.glob("*/*/seed-*") if (found := read(path)) is not None]
    results = sorted({result[:3]: result for result in (*known(out / "scores.csv"), *new)}.values())
    script = (Path(__file__).parent / "run.sh").read_text()
    every = dict(re.findall(r'^\t"(\S+) --core (\w+)', script, re.M))
    core_of = {row: core for row, core in every.items() if any(result.row == row for result in results)}
    out.mkdir(parents=True, exist_ok=True)
    with (out / "scores.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Result._fields)
        writer.writerows(r._replace(score=round(r.score, 4)) for r in results)
    print(table(results, list(core_of)))
    for task in TASKS:
        draw(results, core_of, task, out / f"{task}.png")


def known(scores: Path) -> list[Result]:
    """Read what earlier runs reached."""
    if not scores.exists():
        return []
    with scores.open(newline="") as file:
        return [
            Result(
                r["task"], r["row"], int(r["seed"]), float(r["score"]), int(r["step"]) if r["step"] else None
            )
            for r in csv.DictReader(file)
        ]


def read(path: Path) -> Result | None:
    """Read a run that reached its budget."""
    config, log = read_config(path), read_rows(path / "logs.csv")
    if not log or log[-1]["step"] < 1e6:
        return None
    curve = curve_of(log, "game_return")
    scores = [task_normalized(str(config["env"]), float(y)) or 0.0 for y in curve.y]
    step = next((int(x) for x, y in zip(curve.x, scores, strict=True) if y >= LEARNED), None)
    return Result(path.parts[-3], path.parts[-2], int(path.name.removeprefix("seed-")), scores[-1], step)


def of(results: Sequence[Result], task: str, row: str) -> list[Result]:
    return [result for result in results if (result.task, result.row) == (task, row)]


def table(results: Sequence[Result], rows: Sequence[str]) -> str:
    lines = [
        "| row | " + " | ".join(f"{task} | {LEARNED} after, k steps" for task in TASKS) + " |",
        "|---|" + "---:|---:|" * len(TASKS),
    ]
    for row in rows:
        cells = []
        for task in TASKS:
            found = of(results, task, row)
            cells.append(plots.with_interval(score(found)) if found else "")
            cells.append(", ".join("never" if r.step is None else f"{r.step / 1e3:.0f}" for r in found))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def score(found: Sequence[Result]) -> plots.Interval:
    return bootstrap(mean, as_scores([[result.score for result in found]]))


def draw(results: Sequence[Result], core_of: Mapping[str, str], task: str, path: Path) -> None:
    """Draw the rows of a task, best first, in the colours of their cores."""
    style = plots.looks(core_of)
    scored = [(row, score(found), style[row].color) for row in core_of if (found := of(results, task, row))]
    if scored:
        scored.sort(key=lambda item: -item[1].value)
        figures = plots.intervals(scored, f"{task}: mean of seeds", "task-normalised score", limits=(-0.1, 1))
        path.write_bytes(figures.png)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
