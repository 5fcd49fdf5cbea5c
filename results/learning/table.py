"""Print the runs of run.sh as the table of README.md. Usage: table.py DIR"""

import statistics
import sys
from pathlib import Path

from deltabeast.launch.runs.log import read_rows

STEPS = (50_000, 100_000, 150_000, 200_000)
TITLES = (
    "mode",
    *(f"{steps // 1000}k" for steps in STEPS),
    "policy lag",
    "highest",
    "ratios clipped",
)


def returns(rows, steps):
    """Mean return of the last 100 games where the log first reached the step, to 2% of it."""
    return next(row["game_return"] for row in rows if row["step"] >= 0.98 * steps)


print(f"| {' | '.join(TITLES)} |")
print("|---" * len(TITLES) + "|")
for mode in ("deterministic", "shared", "ahead"):
    seeds = [read_rows(path) for path in sorted(Path(sys.argv[1], mode).glob("*/logs.csv"))]
    cells = []
    for steps in STEPS:
        values = [returns(rows, steps) for rows in seeds]
        cells.append(f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    every = [row for rows in seeds for row in rows]
    lag = statistics.fmean(row["policy_lag"] for row in every)
    highest = max(row["policy_lag_max"] for row in every)
    clipped = statistics.fmean(row["clipped_rho_share"] for row in every)
    print(f"| {mode} | {' | '.join(cells)} | {lag:.2f} | {highest:.0f} | {clipped:.1%} |")
