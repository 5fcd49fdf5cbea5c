"""The Ray engine beside the local one on this machine, in turns: agent steps a second, and what Ray costs.

    python results/cluster/efficiency.py [ROUNDS] [SECONDS] [OPTION...] > results/cluster/efficiency.json

Options are those of `deltabeast train` for the Ray engine alone, for example --num-actors 2 --actor-cpus 0.5.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deltabeast.launch.runs.directory import versions

SAME = ["--game", "pong", "--core", "rdn", "--stem", "nature", "--precision", "fp32", "--device", "cpu",
        "--steps", "100M", "--log-seconds", "0", "--checkpoint-minutes", "60"]  # fmt: skip
COMMAND = [sys.executable, "-c", "from deltabeast.launch.cli import main; main()", "train"]
WARM_UP = 10.0
"""Seconds after the first row before anything counts."""


def rows(path: Path) -> list[dict[str, str]]:
    text = path.read_text() if path.exists() else ""
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    lists = [task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(found for children in lists for child in children for found in family(int(child)))]


def measure(arguments: list[str], seconds: float) -> dict[str, float]:
    """What one run reaches between two rows of its log, after warming up."""
    with tempfile.TemporaryDirectory() as folder:
        log, said = Path(folder, "run", "logs.csv"), Path(folder, "said")
        given = [*COMMAND, *SAME, *arguments, "--run-dir", str(log.parent)]
        process = subprocess.Popen(given, stdout=said.open("w"), stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: bool(rows(log)), process, said)
            time.sleep(WARM_UP)
            first = next_row(log)
            everyone = family(process.pid)
            before = [cpu_seconds(pid) for pid in everyone]
            time.sleep(seconds)
            last = next_row(log)
            cpu = [cpu_seconds(pid) - start for pid, start in zip(everyone, before, strict=True)]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    wall = float(last["time"]) - float(first["time"])
    steps = int(last["step"]) - int(first["step"])
    result = {"sps": steps / wall, "cpu_ms_per_step": 1000 * sum(cpu) / steps}
    result["policy_lag"] = float(last["policy_lag"])
    result |= {name: float(last[name]) for name in last if name.startswith("share_")}
    if "unrolls_learned" in last:
        learned = int(last["unrolls_learned"]) - int(first["unrolls_learned"])
        result["bytes_per_step"] = float(last["bytes_per_step"])
        result["engine_ms_per_unroll"] = 1000 * cpu[0] / learned
    return result


def next_row(log: Path) -> dict[str, str]:
    """The row that is written next, as soon as it is: it ends an update."""
    count = len(rows(log))
    while len(rows(log)) == count:
        time.sleep(0.01)
    return rows(log)[-1]


def wait_until(condition: Any, process: subprocess.Popen[bytes], said: Path) -> None:
    while not condition():
        if process.poll() is not None:
            sys.exit(said.read_text())
        time.sleep(0.1)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    options = sys.argv[3:]
    found: dict[str, list[dict[str, float]]] = {"local": [], "ray": []}
    for _ in range(count):
        for engine, given in (("local", []), ("ray", ["--engine", "ray", *options])):
            found[engine].append(measure(given, seconds))
            print(engine, {k: round(v, 3) for k, v in found[engine][-1].items()}, file=sys.stderr)
    middle = {
        engine: {name: statistics.median(one[name] for one in ones) for name in ones[0]}
        for engine, ones in found.items()
    }
    result = {"options": options, **middle, "ratio": middle["ray"]["sps"] / middle["local"]["sps"]}
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({**result, "rounds": found, "cores": cores, "versions": versions()}, indent=2))


if __name__ == "__main__":
    main()
