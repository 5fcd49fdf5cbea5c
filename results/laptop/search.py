"""Search for settings with which a laptop learns Pong soonest: short runs, one a CPU core; prints a table.

    python results/laptop/search.py RUNS_DIR UNTIL_STEP CORE [NAME ...]

Each run is `deltabeast train` with the annealing of a run of 5M steps, or as its row says, and ends
at UNTIL_STEP or a return of 18; the same command goes on with what is unfinished. Learning does not depend on
the number of processes, so each run has one core of the processor, of those that `taskset` leaves. A NAME
that ends in `, seed N` has another seed than 1.
"""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from table import GOALS, reached

NATURE = "--learning-rate 4e-4 --entropy-cost 0.005 --rmsprop-eps 1e-3"
SHALLOW = f"--stem shallow {NATURE}"
PIXELS = f"{SHALLOW} --normalise-observations on"
PPO = (  # near Sample Factory's
    f"{PIXELS} --steps 1200k --unroll-length 64 --passes 4 --minibatch-size 4 --optimizer adam "
    "--learning-rate 2.5e-4 --clip-ratio 0.1 --vtrace-lambda 0.95 --normalise-advantages --max-grad-norm 128 "
    "--entropy-cost 0.01"
)
CANDIDATES = {
    "entropy 0.01": "--learning-rate 4e-4",
    "entropy 0.005": "--learning-rate 4e-4 --entropy-cost 0.005",
    "nature": NATURE,
    "learning rate 6e-4": "--learning-rate 6e-4 --entropy-cost 0.005",
    "unroll 10": "--learning-rate 5e-4 --entropy-cost 0.005 --unroll-length 10",
    "unroll 10, 3M": f"{NATURE} --steps 3M --unroll-length 10",
    "unroll 10, 3M, entropy 0.001": f"{NATURE} --steps 3M --unroll-length 10 --entropy-cost 0.001",
    "unroll 10, 3M, entropy 0.001, baseline 0.1": f"{NATURE} --steps 3M --unroll-length 10 "
    "--entropy-cost 0.001 --baseline-cost 0.1",
    "unroll 5, 3M": f"{NATURE} --steps 3M --unroll-length 5 --learning-rate 3e-4",
    "shallow": SHALLOW,
    "shallow, entropy 0.002": f"{SHALLOW} --entropy-cost 0.002",
    "shallow, 3M": f"{SHALLOW} --steps 3M",
    "pixels": PIXELS,
    "pixels, 1.2M": f"{PIXELS} --steps 1200k",
    "pixels, 1.2M, nature": f"{PIXELS} --steps 1200k --stem nature",
    "pixels, 1.2M, 6e-4": f"{PIXELS} --steps 1200k --learning-rate 6e-4",
    "pixels, 1.2M, lambda 0.95": f"{PIXELS} --steps 1200k --vtrace-lambda 0.95",
    "pixels, 1.5M": f"{PIXELS} --steps 1500k",
    "pixels, 1.5M, nature": f"{PIXELS} --steps 1500k --stem nature",
    "pixels, 1.5M, 6e-4": f"{PIXELS} --steps 1500k --learning-rate 6e-4",
    "pixels, 1.5M, lambda 0.95": f"{PIXELS} --steps 1500k --vtrace-lambda 0.95",
    "pixels, 1.5M, batches of 8": f"{PIXELS} --steps 1500k --num-envs 8 --batch-size 8",
    "pixels, 1.5M, unrolls of 40": f"{PIXELS} --steps 1500k --unroll-length 40",
    "pixels, 1.2M, twice": f"{PIXELS} --steps 1200k --passes 2",
    "pixels, 1.2M, twice, halves": f"{PIXELS} --steps 1200k --passes 2 --minibatch-size 8",
    "pixels, PPO": PPO,
    "pixels, PPO, three passes": f"{PPO} --passes 3",
    "pixels, PPO, two passes": f"{PPO} --passes 2",
    "pixels, PPO, two passes, 5e-4": f"{PPO} --passes 2 --learning-rate 5e-4",
    "pixels, PPO, 5e-4": f"{PPO} --learning-rate 5e-4",
    "pixels, PPO, unrolls of 32": f"{PPO} --unroll-length 32 --max-grad-norm 64",
    "pixels, PPO, two passes, unrolls of 32": f"{PPO} --passes 2 --unroll-length 32 --max-grad-norm 64",
    "pixels, PPO, entropy 0.005": f"{PPO} --entropy-cost 0.005",
    "pixels, PPO, V-trace": f"{PPO} --clip-ratio 0",
}
SEED = re.compile(r", seed (\d+)$")
COMMON = (
    "--game pong --stem nature --steps 5M --num-envs 16 --batch-size 16 --unroll-length 20 "
    "--num-workers 1 --device cpu"
)
Log = list[tuple[int, float]]


def read_log(run: Path) -> Log:
    """Return steps and mean returns of the last 100 games."""
    if not (run / "logs.csv").exists():
        return []
    with (run / "logs.csv").open(newline="") as file:
        rows = [(int(row["step"]), row["game_return"]) for row in csv.DictReader(file)]
    return [(step, float(score)) for step, score in rows if score]


def options_of(name: str) -> str:
    """Return the options of a candidate, `NAME` or `NAME, seed N`."""
    seed = SEED.search(name)
    return CANDIDATES[SEED.sub("", name)] + (f" --seed {seed[1]}" if seed else "")


def main() -> None:
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    runs, until, core = Path(sys.argv[1]) / sys.argv[3], int(sys.argv[2]), sys.argv[3]
    names = sys.argv[4:] or list(CANDIDATES)
    if unknown := [name for name in names if SEED.sub("", name) not in CANDIDATES]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; choose {', '.join(map(repr, CANDIDATES))}")
    free: Queue[int] = Queue()
    for cpu in sorted(os.sched_getaffinity(0)):
        free.put(cpu)

    def done(name: str) -> bool:
        log = read_log(runs / name)
        return bool(log) and (log[-1][0] >= until or log[-1][1] >= GOALS[-1])

    def train(name: str) -> None:
        cpu = free.get()
        deltabeast = str(Path(sys.executable).parent / "deltabeast")
        options = [*COMMON.split(), *options_of(name).split(), "--core", core, "--run-dir", str(runs / name)]
        command = ["taskset", "-c", str(cpu), "nice", deltabeast, "train", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and not done(name):
            time.sleep(5)
        process.send_signal(signal.SIGTERM)
        process.wait()
        free.put(cpu)

    with ThreadPoolExecutor(free.qsize()) as pool:
        list(pool.map(train, (name for name in names if not done(name))))
    print(f"| | options | {' | '.join(f'{goal:g} at step' for goal in GOALS)} | ended at | with |")
    print("|---" * (len(GOALS) + 4) + "|")
    for name in names:
        log = read_log(runs / name)
        steps = ["-" if when is None else f"{when:,}" for when in reached(log)]
        print(f"| {name} | `{options_of(name)}` | {' | '.join(steps)} | {log[-1][0]:,} | {log[-1][1]:.1f} |")


if __name__ == "__main__":
    main()
