"""Print a table of the curves of time_to_score.py: python results/laptop/table.py CURVES"""

import csv
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

GOALS = (-15.0, 0.0, 10.0, 18.0)


def reached(curve: Iterable[tuple[float, float]]) -> list[float | None]:
    """Return when a score first rose to each of GOALS, of pairs of a time and a score; None if it did not.

    A mean of the first few games may be above a goal by luck: that is no rise.
    """
    steps = list(pairwise(curve))
    return [
        next((when for (_, before), (when, score) in steps if before < goal <= score), None) for goal in GOALS
    ]


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit(__doc__)
    print(
        f"| run | {' | '.join(f'{goal:g} at minute' for goal in GOALS)} | steps | minutes | steps/s | last |"
    )
    print("|---|" + "---|" * (len(GOALS) + 4))
    for path in sorted(Path(sys.argv[1]).glob("*.csv")):
        with path.open(newline="") as file:
            curve = [(float(r["minutes"]), int(r["steps"]), float(r["return"])) for r in csv.DictReader(file)]
        times = [
            "-" if when is None else f"{when:.1f}" for when in reached((m, score) for m, _, score in curve)
        ]
        minutes, steps, last = curve[-1]
        numbers = f"{steps:,} | {minutes:.1f} | {steps / minutes / 60:,.0f} | {last:.1f}"
        print(f"| {path.stem} | {' | '.join(times)} | {numbers} |")


if __name__ == "__main__":
    main()
