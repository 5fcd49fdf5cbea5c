"""Pong by what agents see of it and by their memory, as one table.

Usage: python results/atari/table.py RUNS OUT
Prints the table; draws OUT/<screens>.png, the training curves; OUT/scores.csv gets every seed's numbers.
Scores are means of 50 whole games; 95% bootstrap intervals are over seeds, where there are several.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deltabeast.envs import human_normalized
from deltabeast.launch.comparison import plots
from deltabeast.launch.comparison.curves import Curve, band, curve_of
from deltabeast.launch.comparison.runs import Run, read_run
from deltabeast.launch.comparison.statistics import Interval, as_scores, bootstrap, mean

SCREENS = {"1": "one", "1-flicker": "one, half of them black", "4": "four"}
LEARNED = 18.0
"""the training return whose first step counts"""


class Result(NamedTuple):
    """What a run reached."""

    screens: str
    core: str
    seed: int
    sampled: float
    greedy: float
    step: int | None
    """at which the mean of the last 100 training games first was LEARNED; None if it never was"""


def main(runs: Path, out: Path) -> None:
    found = [run for path in sorted(runs.glob("pong-*/*/seed-*")) if (run := evaluated(path)) is not None]
    results = sorted(map(read, found), key=lambda r: r[:3])
    out.mkdir(parents=True, exist_ok=True)
    with (out / "scores.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Result._fields)
        writer.writerows(results)
    print(table(results))
    for screens in SCREENS:
        draw(screens, [run for run in found if screens_of(run) == screens], out / f"{screens}.png")


def evaluated(path: Path) -> Run | None:
    """Read a run that has both evaluations."""
    run, _ = read_run(path)
    return run if run and {e.greedy for e in run.evaluations} == {True, False} else None


def screens_of(run: Run) -> str:
    return run.path.parts[-3].removeprefix("pong-")


def read(run: Run) -> Result:
    scores = {e.greedy: e.game for e in run.evaluations}
    curve = curve_of(run.rows, "game_return")
    step = next((int(x) for x, y in zip(curve.x, curve.y, strict=True) if y >= LEARNED), None)
    sampled, greedy = scores[False], scores[True]
    assert run.seed is not None and sampled is not None and greedy is not None, run.path
    return Result(screens_of(run), run.core, run.seed, round(sampled, 4), round(greedy, 4), step)


def table(results: Sequence[Result]) -> str:
    groups: Mapping[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.screens, result.core].append(result)
    lines = [
        "| screens | core | sampled | of human | greedy | seeds, sampled | 18 in training after, M steps |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for (screens, core), members in sorted(groups.items(), key=lambda g: (g[0][0], -over(g[1]).value)):
        greedy = bootstrap(mean, as_scores([[r.greedy for r in members]]))
        cells = [
            SCREENS[screens],
            core,
            plots.with_interval(over(members)),
            f"{human_normalized('pong', over(members).value):.0%}",
            plots.with_interval(greedy),
            ", ".join(plots.number(r.sampled) for r in members),
            ", ".join("never" if r.step is None else f"{r.step / 1e6:.2f}" for r in members),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def over(members: Sequence[Result]) -> Interval:
    return bootstrap(mean, as_scores([[r.sampled for r in members]]))


def draw(screens: str, runs: Sequence[Run], path: Path) -> None:
    """Draw the training curves of the cores."""
    curves: dict[str, list[Curve]] = defaultdict(list)
    for run in runs:
        curves[run.core].append(curve_of(run.rows, "game_return"))
    if curves:
        figures = plots.learning_curves(
            curves,
            {core: band(each) for core, each in curves.items()},
            plots.looks({core: core for core in curves}),
            "agent steps",
            "return, mean of the last 100 games",
            f"Pong, screens seen at once: {SCREENS[screens]}",
        )
        path.write_bytes(figures.png)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
