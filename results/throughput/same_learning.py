"""Do two versions learn alike? Three seeds of RepeatPreviousEasy each: returns at thirds of the run, a table.

    python results/throughput/same_learning.py /path/of/other/.venv/bin/deltabeast

Settings of results/compare. Two runs at a time, each on a core of its own.
"""

import csv
import itertools
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

STEPS = 300_000
OPTIONS = (
    "--env popgym:popgym-RepeatPreviousEasy-v0 --precision fp32 --num-envs 16 --batch-size 16 "
    "--unroll-length 26 --rmsprop-eps 0.01 --discount 0.5 --entropy-cost 0.001 --learning-rate 2e-3 "
    "--num-workers 1 --device cpu"
)
free = Queue()
free.put(0)
free.put(1)


def train(version, core, seed):
    """Return the mean return of the last 100 games after each third of the run."""
    with tempfile.TemporaryDirectory() as folder:
        where = [
            "--steps",
            str(STEPS),
            "--seed",
            str(seed),
            "--log-seconds",
            "0.5",
            "--run-dir",
            f"{folder}/run",
        ]
        cpu = free.get()
        command = ["taskset", "-c", str(cpu), version, "train", *OPTIONS.split(), "--core", core, *where]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        free.put(cpu)
        with Path(folder, "run", "logs.csv").open(newline="") as file:
            rows = [(int(row["step"]), float(row["game_return"])) for row in csv.DictReader(file)]
    return [next(score for step, score in rows if step >= STEPS * third / 3) for third in (1, 2, 3)]


versions = {"before": sys.argv[1], "after": str(Path(sys.executable).parent / "deltabeast")}
cells = list(itertools.product(("rdn", "lstm"), versions, (1, 2, 3)))
with ThreadPoolExecutor(2) as pool:
    scores = list(pool.map(lambda cell: train(versions[cell[1]], cell[0], cell[2]), cells))
print("| core | version | 100k steps | 200k | 300k |\n|---|---|---|---|---|")
for (core, version), group in itertools.groupby(zip(cells, scores, strict=True), lambda pair: pair[0][:2]):
    columns = zip(*(score for _, score in group), strict=True)
    shown = (f"{statistics.mean(c):.2f} ({', '.join(f'{x:.2f}' for x in c)})" for c in columns)
    print(f"| {core} | {version} | {' | '.join(shown)} |")
