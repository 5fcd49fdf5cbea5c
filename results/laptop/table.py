"""Print a table of the curves of time_to_score.py: python results/laptop/table.py CURVES"""

import csv
import sys
from pathlib import Path

GOALS = (-15.0, 0.0, 10.0, 18.0)

print(f"| run | {' | '.join(f'{goal:g} at minute' for goal in GOALS)} | steps | minutes | steps/s | last |")
print("|---|" + "---|" * (len(GOALS) + 4))
for path in sorted(Path(sys.argv[1]).glob("*.csv")):
    with path.open(newline="") as file:
        curve = [(float(r["minutes"]), int(r["steps"]), float(r["return"])) for r in csv.DictReader(file)]
    reached = (next((f"{m:.1f}" for m, _, score in curve if score >= goal), "-") for goal in GOALS)
    minutes, steps, last = curve[-1]
    numbers = f"{steps:,} | {minutes:.1f} | {steps / minutes / 60:,.0f} | {last:.1f}"
    print(f"| {path.stem} | {' | '.join(reached)} | {numbers} |")
