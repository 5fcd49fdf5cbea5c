"""Learning curves and a table of finished runs: python results/curves.py RUNS OUT [--title TEXT]

RUNS holds runs as GROUP/seed-N, GROUP being any path such as rdn/full. OUT gets table.md, curves.png and
curves.csv (group, seed, step, seconds, game_return). Scores are means of the last 100 training games.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import matplotlib

from deltabeast.launch.comparison.curves import training_seconds
from deltabeast.launch.runs.log import read_rows

matplotlib.use("Agg")
import matplotlib.pyplot as plt


class Point(NamedTuple):
    step: int
    seconds: float
    game_return: float


def read_curve(run: Path) -> list[Point]:
    rows = read_rows(run / "logs.csv")
    taken = training_seconds(rows)
    return [
        Point(int(row["step"]), float(seconds), row["game_return"])
        for row, seconds in zip(rows, taken, strict=True)
        if "game_return" in row
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", default="")
    options = parser.parse_args()
    curves: dict[str, dict[str, list[Point]]] = defaultdict(dict)
    commits = set()
    for log in sorted(options.runs.glob("**/seed-*/logs.csv")):
        run = log.parent
        curves[str(run.parent.relative_to(options.runs))][run.name] = read_curve(run)
        commits.add(json.loads((run / "config.json").read_text())["versions"]["commit"])
    options.out.mkdir(parents=True, exist_ok=True)

    with (options.out / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["group", "seed", *Point._fields])
        for group, seeds in curves.items():
            for seed, curve in seeds.items():
                writer.writerows([group, seed, p.step, f"{p.seconds:.1f}", p.game_return] for p in curve)

    lines = ["| runs | final return, mean | by seed | agent steps | minutes a run |", "|---|---|---|---|---|"]
    for group, seeds in curves.items():
        finals = [curve[-1].game_return for curve in seeds.values()]
        minutes = statistics.fmean(curve[-1].seconds for curve in seeds.values()) / 60
        by_seed = ", ".join(f"{value:.2f}" for value in finals)
        steps = max(curve[-1].step for curve in seeds.values())
        lines.append(f"| {group} | {statistics.fmean(finals):.2f} | {by_seed} | {steps:,} | {minutes:.1f} |")
    lines += ["", f"Commit: {', '.join(sorted(str(c) for c in commits))}."]
    (options.out / "table.md").write_text("\n".join(lines) + "\n")

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    colors = plt.get_cmap("tab10")
    families = sorted({group.split("/")[0] for group in curves})
    for group, seeds in curves.items():
        index = families.index(group.split("/")[0])
        style = "--" if "per_step" in group else "-"
        for number, curve in enumerate(seeds.values()):
            axes.plot(
                [p.step for p in curve],
                [p.game_return for p in curve],
                style,
                color=colors(index % 10),
                alpha=0.8,
                label=group if number == 0 else None,
            )
    axes.set(xlabel="agent steps", ylabel="return, mean of the last 100 games", title=options.title)
    axes.legend(fontsize="small")
    figure.savefig(options.out / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
