"""Tabulates runs of swap: how long sequences grew, and who passes at 256 steps, by seed.

Usage: python results/probe/swaps.py RUNS/swap RUNS/swap-wide
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PASSES = 0.99
HEAD = """| memory | length reached | last answer right at 256 | passes |
|---|---|---|---|"""


def main(folders: list[Path]) -> None:
    for folder in folders:
        print(f"### {folder.name}\n\n{HEAD}")
        for core in sorted(folder.iterdir()):
            found = [json.loads(path.read_text()) for path in sorted(core.glob("seed-*/scores.json"))]
            right = [scores["test"]["final_accuracy"] for scores in found]
            lengths = ", ".join(str(scores["length"]) for scores in found)
            shown = ", ".join(f"{share:.3f}" for share in right)
            print(
                f"| {core.name} | {lengths} | {shown} | {sum(x >= PASSES for x in right)} of {len(right)} |"
            )
        print()


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
