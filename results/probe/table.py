"""Sets retrieval losses beside the published ones: how often on the same side of 0.01, how near elsewhere.

Usage: deltabeast compare RUNS/retrieval-1 RUNS/retrieval-2 --out OUT
       python results/probe/table.py OUT/tables/probes.csv
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

PASSES = 0.01
NEAR = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="OUT/tables/probes.csv")
    path: Path = parser.parse_args().table
    with path.open(newline="") as file:
        tabulated = list(csv.DictReader(file))
    rows = [row for row in tabulated if row["metric"] == "loss" and row["task"].startswith("retrieval")]
    for setting in ("1", "2"):
        mine = [row for row in rows if row["task"].split()[2] == setting]
        if mine:
            print(f"### Setting {setting}\n")
            _table(mine)
            _agreement([row for row in mine if row["published"]])


def _table(rows: Sequence[dict[str, str]]) -> None:
    sizes = sorted({int(row["task"].split()[-1]) for row in rows})
    print(f"| model | {' | '.join(f'S = {size}' for size in sizes)} |\n|---|{'---:|' * len(sizes)}")
    for model in sorted({row["model"] for row in rows}):
        cells = []
        for size in sizes:
            found = [row for row in rows if row["model"] == model and int(row["task"].split()[-1]) == size]
            cells.append(" ".join(f"{_loss(row['mean'])} ({_loss(row['published'])})" for row in found))
        print(f"| {model} | {' | '.join(cells)} |")
    print()


def _loss(text: str) -> str:
    return f"{float(text):.2g}" if text else "-"


def _agreement(rows: Sequence[dict[str, str]]) -> None:
    pairs = [(float(row["mean"]), float(row["published"])) for row in rows]
    for what, cells in (
        ("pass there", [(ours, theirs) for ours, theirs in pairs if theirs < PASSES]),
        ("fail there", [(ours, theirs) for ours, theirs in pairs if theirs >= PASSES]),
    ):
        same = [(a, b) for a, b in cells if (a < PASSES) == (b < PASSES)]
        print(f"* Of {len(cells)} that {what}, {len(same)} are on the same side of {PASSES} here.")
    failed = [(a, b) for a, b in pairs if min(a, b) >= PASSES]
    near = [a for a, b in failed if abs(a - b) <= NEAR * b]
    print(f"* Of {len(failed)} that fail in both, {len(near)} are within {NEAR:.0%} of the published loss.\n")


if __name__ == "__main__":
    main()
