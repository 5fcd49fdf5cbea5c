"""Tabulates runs of swap: how long sequences grew, who passes at 256 steps, and when, by seed.

Usage: python results/probe/swaps.py RUNS/swap RUNS/swap-wide
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

PASSES = 0.99
LONGEST = "256"
HEAD = """| memory | length reached | last answer right at 256 | passes | at update |
|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="of cores, each with seed-N/")
    folders: list[Path] = parser.parse_args().folders
    if missing := [folder for folder in folders if not folder.is_dir()]:
        sys.exit(f"{missing[0]} is no folder of runs; results/probe/run.sh RUNS swap makes it")
    for folder in folders:
        print(f"### {folder.name}\n\n{HEAD}")
        for core in sorted(folder.iterdir()):
            runs = [path.parent for path in sorted(core.glob("seed-*/scores.json"))]
            found = [json.loads((run / "scores.json").read_text()) for run in runs]
            right = [scores["test"]["final_accuracy"] for scores in found]
            cells = [
                ", ".join(str(scores["length"]) for scores in found),
                ", ".join(f"{share:.3f}" for share in right),
                f"{sum(x >= PASSES for x in right)} of {len(right)}",
                ", ".join(filter(None, map(_first, runs))),
            ]
            print(f"| {core.name} | {' | '.join(cells)} |")
        print()


def _first(run: Path) -> str | None:
    """Return the update of the first evaluation at full length that passes."""
    with (run / "logs.csv").open(newline="") as file:
        passed = (
            int(row["step"])
            for row in csv.DictReader(file)
            if row["length"] == LONGEST and float(row["final_accuracy"]) >= PASSES
        )
        first = next(passed, None)
    return None if first is None else f"{first:,}"


if __name__ == "__main__":
    main()
