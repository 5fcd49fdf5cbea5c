"""Play Pong in many processes, each with one thread on a core of its own: what the cores could do together.

Usage: python results/gpu/processes.py   (Linux; prints agent steps/s)
One process, then as many as half of the cores (every other core, the first half), then one a core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from deltabeast.envs import make_vector_env

GAMES, SECONDS = 16, 3.0


def main() -> None:
    cores = range(os.cpu_count() or 1)
    half = max(1, len(cores) // 2)
    for name, chosen in (
        ("one", cores[:1]),
        ("half, every other", cores[::2]),
        ("the first half", cores[:half]),
        ("all", cores),
    ):
        speeds = together(chosen)
        print(f"{name}: {sum(speeds):.0f} steps/s, {min(speeds):.0f} to {max(speeds):.0f} each", flush=True)


def together(cores: Sequence[int]) -> list[float]:
    """Return what each of the processes on these cores does while all of them play."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, __file__, str(core)], **pipes) for core in cores]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return [float(process.communicate()[0]) for process in processes]


def play(core: int) -> None:
    os.sched_setaffinity(0, {core})
    env = make_vector_env("pong", num_envs=GAMES, num_threads=1)
    env.reset(seed=core)
    actions = np.random.default_rng(0).integers(6, size=(1000, GAMES))
    for warming in actions[:20]:
        env.step(warming)
    print("ready", flush=True)
    sys.stdin.readline()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        env.step(actions[steps % len(actions)])
        steps += 1
    print(steps * GAMES / (time.perf_counter() - start))


if __name__ == "__main__":
    play(int(sys.argv[1])) if len(sys.argv) > 1 else main()
