"""Memory of a training run over time: python memory.py MINUTES CSV [options of deltabeast train ...]

Starts the run, looks at it and its processes twice a minute, and stops it after so many minutes. Memory that
processes share counts once (proportional set size), so that Linux alone will do. The first tenth is warm-up.
"""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LOOK = 30.0


def family(pid):
    """The process and all below it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            todo += [int(child) for child in task.read_text().split()]
    return found


def megabytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main(minutes, path, *options):
    run_dir = Path(options[options.index("--run-dir") + 1])
    run = subprocess.Popen(["deltabeast", "train", *options], stdout=subprocess.DEVNULL)
    start, rows = time.monotonic(), []
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", "steps", "MiB", "processes", "files"])
        while run.poll() is None and time.monotonic() - start < 60 * float(minutes):
            time.sleep(LOOK)
            pids = family(run.pid)
            files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
            log = run_dir / "logs.csv"
            rows_logged = log.read_text().splitlines()[1:] if log.exists() else []
            steps = rows_logged[-1].split(",")[0] if rows_logged else "0"
            memory = round(sum(megabytes(pid) for pid in pids), 1)
            rows.append((round(time.monotonic() - start), steps, memory, len(pids), files))
            writer.writerow(rows[-1])
            file.flush()
    run.send_signal(signal.SIGTERM)
    run.wait()
    seconds, _, memory, _, files = np.array(rows, float)[len(rows) // 10 :].T
    slope = np.polyfit(seconds / 3600, memory, 1)[0]
    print(
        f"{rows[-1][1]} steps in {rows[-1][0] / 60:.0f} minutes; after warm-up {memory.min():,.0f} to "
        f"{memory.max():,.0f} MiB, first {memory[0]:,.0f}, last {memory[-1]:,.0f}, slope {slope:+.1f} MiB an "
        f"hour; {files.min():.0f} to {files.max():.0f} open files"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
