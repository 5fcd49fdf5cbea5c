"""Tabulates runs of run.sh: what replay does to an agent that turns as the last cue said.

    python results/reuse/table.py RUNS

Steps until the mean return of the last 100 games is 0.9, by seed; the lowest such mean after that, in any
seed; the score of 100 games afterwards; over all rows of the log, the KL divergence from the policy that
acted, in nats a step, and the share of steps whose importance ratio is clipped. Means over seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from pathlib import Path

LEARNED = 0.9
NAMES = {"none": "none", "0": "as stored", "16": "burn-in 16", "64": "burn-in 64"}
HEAD = ["core", "replay", "steps to 0.9", "lowest after", "score", "KL", "clipped"]


def row(core: str, replay: str, runs: list[Path]) -> list[str]:
    """Return the cells of a core's runs."""
    reached, lowest, score, divergence, clipped = [], [], [], [], []
    for run in runs:
        with (run / "logs.csv").open(newline="") as file:
            logged = [line for line in csv.DictReader(file) if line["game_return"]]
        returns = [(int(line["step"]), float(line["game_return"])) for line in logged]
        first = next(((step, n) for n, (step, mean) in enumerate(returns) if mean >= LEARNED), None)
        reached.append(f"{first[0] / 1000:.0f}k" if first else "-")
        if first:
            lowest.append(min(mean for _, mean in returns[first[1] :]))
        divergence.append(statistics.fmean(float(line["behavior_kl"]) for line in logged))
        clipped.append(statistics.fmean(float(line["clipped_rho_share"]) for line in logged))
        (found,) = (run / "eval").glob("*.json")
        score.append(json.loads(found.read_text())["results"]["trained"]["summary"]["game"]["overall_mean"])
    cells = [", ".join(reached), f"{min(lowest):.2f}" if lowest else "-", f"{statistics.fmean(score):.2f}"]
    means = [f"{statistics.fmean(each):.2g}" for each in (divergence, clipped)]
    return [core, NAMES[replay], *cells, *means]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    folder: Path = parser.parse_args().runs
    if not (folder / "none").is_dir():
        sys.exit(f"{folder} has no runs of results/reuse/run.sh")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * 2}{'--:|' * (len(HEAD) - 2)}")
    for core in sorted(path.name for path in (folder / "none").iterdir()):
        for replay in NAMES:
            runs = [path.parent for path in sorted((folder / replay / core).glob("seed-*/eval"))]
            if runs:
                print(f"| {' | '.join(row(core, replay, runs))} |")


if __name__ == "__main__":
    main()
