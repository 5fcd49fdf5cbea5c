"""Training speed and memory of another checkout beside this one's, in turns; prints a table.

    python results/throughput/against.py /path/of/other/.venv/bin/deltabeast [ROUNDS] [ROW ...]

Each cell is `deltabeast train` as a user runs it, ended after SECONDS of log. Nothing else may run.
"""

import csv
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deltabeast.launch.bench.command import hardware
from deltabeast.launch.runs.directory import versions

WARM_UP, SECONDS = 4.0, 12.0
ATARI = ["--game", "pong", "--num-envs", "32", "--batch-size", "32", "--unroll-length", "50"]
DEMO = ["--game", "kung_fu_master", "--stem", "nature", "--num-envs", "8", "--batch-size", "8"]
POPGYM = ["--env", "popgym:popgym-RepeatPreviousEasy-v0", "--num-envs", "16", "--batch-size", "16"]
FAST_WEIGHTS = ("linear_transformer", "delta_net", "delta_rnn")


def rows():
    """Yield a name, the options of `train` and the number of cores of each row."""
    for stem in ("residual", "nature"):
        for precision in ("fp32", "bf16"):
            more = (
                ("feedforward", "gated_feedforward", *FAST_WEIGHTS)
                if (stem, precision) == ("nature", "fp32")
                else ()
            )
            for core in ("rdn", "lstm", *more):
                yield (
                    f"{stem} {precision} {core}",
                    [*ATARI, "--stem", stem, "--precision", precision, "--core", core],
                    2,
                )
    for core in ("rdn", "lstm"):
        yield f"demo {core}", [*DEMO, "--unroll-length", "20", "--core", core], 2
    for core in ("rdn", "lstm", *FAST_WEIGHTS):
        yield f"popgym {core}, one core", [*POPGYM, "--unroll-length", "26", "--core", core], 1


def train(deltabeast, arguments, cores):
    """Return agent steps a second after warming up, and the peak memory of all processes in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        options = [
            *arguments,
            "--device",
            "cpu",
            "--steps",
            "1B",
            "--log-seconds",
            "1",
            "--run-dir",
            str(run_dir),
        ]
        command = ["taskset", "-c", f"0-{cores - 1}", deltabeast, "train", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        log = run_dir / "logs.csv"
        rows = []
        while not rows or rows[-1][0] - rows[0][0] < WARM_UP + SECONDS:
            time.sleep(1)
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)}: {process.stderr.read()}")
            rows = [(float(r["time"]), int(r["step"])) for r in read(log)] if log.exists() else []
        peak = sum(high_water(pid) for pid in (process.pid, *children(process.pid)))
        process.send_signal(signal.SIGTERM)
        process.wait()
    start = next(row for row in rows if row[0] - rows[0][0] >= WARM_UP)
    return (rows[-1][1] - start[1]) / (rows[-1][0] - start[0]), peak


def read(log):
    with log.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["share_waiting"]]


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def high_water(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def commit_of(deltabeast):
    root = Path(deltabeast).resolve().parents[2]
    return subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True
    ).stdout.strip()


def main():
    other, rounds, wanted = sys.argv[1], int((sys.argv[2:] or ["3"])[0]), sys.argv[3:]
    ours = str(Path(sys.executable).parent / "deltabeast")
    print("| | before, agent steps/s | after | ratio | memory before, GiB | after | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, arguments, cores in rows():
        if wanted and not any(name.startswith(word) for word in wanted):
            continue
        both = [[train(one, arguments, cores) for one in (other, ours)] for _ in range(rounds)]
        speeds, peaks = ([[run[i] for run in one] for one in zip(*both, strict=True)] for i in (0, 1))
        ratio = statistics.median(b / a for a, b in zip(*speeds, strict=True))
        a, b = (statistics.median(one) for one in speeds)
        m, n = (statistics.median(one) / 2**30 for one in peaks)
        print(f"| {name} | {a:,.0f} | {b:,.0f} | {ratio:.2f} | {m:.2f} | {n:.2f} | {n / m:.2f} |", flush=True)
    about = f"{hardware()['processor']}, {hardware()['cores']} cores, torch {versions()['torch']}"
    print(f"\nCommits {commit_of(other)} and {commit_of(ours)}; {about}; medians of {rounds}.")


if __name__ == "__main__":
    main()
