"""Minutes from process start until the mean return of the last 100 games of Pong reaches 18, on two cores.

    python results/laptop/time_to_score.py CURVES deltabeast CORE SEED
    python results/laptop/time_to_score.py CURVES sample-factory PYTHON defaults|tuned SEED MINUTES
    python results/laptop/time_to_score.py CURVES cleanrl PYTHON SEED MINUTES SCRIPT

SCRIPT is the path of CleanRL's ppo_atari_envpool.py, or ppo_atari_lstm.py with its checkout on PYTHONPATH.
One run, ended when it gets there or after so many MINUTES; its curve goes into the folder CURVES, as
`minutes,steps,return`. Nothing else may run: who needs the machine meanwhile stops the run and its clock
(`kill -STOP` to this process and all that it started, later `-CONT`; Sample Factory ends itself if that lasts
minutes). `table.py CURVES` compares what is there. diary.md has the peers' environments.
"""

import csv
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

GOAL, GAMES = 18.0, 100
THROUGHPUT = Path(__file__).parents[1] / "throughput"
# A laptop's two cores: as many workers as cores, whose environments act in two halves by turns.
TUNED = ["--num_workers=2", "--num_envs_per_worker=8", "--worker_num_splits=2", "--async_rl=True"]
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_ARENA_MAX": "1",
}
"""glibc keeps freed memory, as deltabeast asks it to itself; with `tuned`."""

Point = tuple[int, float]


class Clock:
    """Minutes since it was made, less the time in which this process was stopped."""

    def __init__(self) -> None:
        self.minutes = 0.0
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.5)
            now = time.monotonic()
            # A tick that took longer was stopped in its midst: a busy machine delays one by milliseconds.
            self.minutes += min(now - last, 2.0) / 60
            last = now


def follow_deltabeast(process: subprocess.Popen[str], folder: Path) -> Iterator[Point]:
    """Yield steps and mean return of each line of its log, as they come."""
    seen, log = 0, folder / "run" / "logs.csv"
    while process.poll() is None:
        time.sleep(1)
        rows = list(csv.DictReader(log.open(newline=""))) if log.exists() else []
        for row in rows[seen:]:
            if row["game_return"]:
                yield int(row["step"]), float(row["game_return"])
        seen = len(rows)


def follow_sample_factory(process: subprocess.Popen[str], folder: Path) -> Iterator[Point]:
    steps = 0
    for line in process.stdout or ():
        if found := re.search(r"Total num frames: (\d+)", line):
            steps = int(found[1]) // 4
        if found := re.search(r"Avg episode reward: \[\(0, '(-?[\d.]+)'\)\]", line):
            yield steps, float(found[1])


def follow_cleanrl(process: subprocess.Popen[str], folder: Path) -> Iterator[Point]:
    returns: deque[float] = deque(maxlen=GAMES)
    for line in process.stdout or ():
        if found := re.search(r"global_step=(\d+), episodic_return=\[?(-?[\d.]+)", line):
            returns.append(float(found[2]))
            if len(returns) == GAMES:
                yield int(found[1]), sum(returns) / GAMES


def command(system: str, arguments: list[str], folder: Path) -> list[str]:
    if system == "deltabeast":
        core, seed = arguments
        deltabeast = str(Path(sys.executable).parent / "deltabeast")
        options = f"--game pong --preset laptop --core {core} --seed {seed} --device cpu --log-seconds 5"
        return [deltabeast, "train", *options.split(), "--run-dir", str(folder / "run")]
    if system == "sample-factory":
        python, settings, seed, _ = arguments
        options = f"--env=atari_pong --device=cpu --experiment=pong --seed={seed} --train_dir={folder}"
        more = TUNED if settings == "tuned" else []
        return [python, str(THROUGHPUT / "sample_factory_atari.py"), *options.split(), *more]
    python, seed, _, script = arguments
    game = "Pong-v5" if "envpool" in script else "PongNoFrameskip-v4"
    return [python, "-u", script, "--env-id", game, "--no-cuda", "--seed", seed]


FOLLOW = {
    "deltabeast": follow_deltabeast,
    "sample-factory": follow_sample_factory,
    "cleanrl": follow_cleanrl,
}


LIMIT_AT = {"sample-factory": 3, "cleanrl": 2}
"""Where MINUTES stands among the arguments of a system."""


def main() -> None:
    if len(sys.argv) < 5 or len(sys.argv) <= 3 + LIMIT_AT.get(sys.argv[2], 0):
        raise SystemExit(__doc__)
    curves, system, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    limit = arguments[LIMIT_AT[system]] if system in LIMIT_AT else "120"
    words = [Path(word).stem if word.endswith(".py") else word for word in arguments]
    settings = [word for word in words if "/" not in word and word != limit]
    curves.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        (curves / "-".join([system, *settings])).with_suffix(".csv").open("w", newline="") as file,
    ):
        clock = Clock()
        process = subprocess.Popen(
            command(system, arguments, Path(folder)),
            stdout=subprocess.DEVNULL if system == "deltabeast" else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(ALLOCATOR if "tuned" in settings else {})},
            start_new_session=True,
        )
        writer = csv.writer(file)
        writer.writerow(("minutes", "steps", "return"))
        for steps, score in FOLLOW[system](process, Path(folder)):
            minutes = clock.minutes
            writer.writerow((f"{minutes:.3f}", steps, f"{score:.3f}"))
            file.flush()
            if score >= GOAL or minutes > float(limit):
                break
        else:
            raise SystemExit(f"{system} ended by itself, exit status {process.wait()}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    print(f"{system} {' '.join(settings)}: {score:.1f} after {minutes:.1f} minutes, {steps:,} steps")


if __name__ == "__main__":
    main()
