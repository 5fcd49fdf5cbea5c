"""How fast would a training be on more cores than this machine has, one process on each?

    python results/throughput/scaling.py DELTABEAST [--core rdn] [--seconds 15]

A model: an update of W processes, each with 16 / W of the 16 trajectories of `--preset laptop`, takes

    T(16 / W) + shared(W) + messages(W)

T(b) is measured: the time of an update of b trajectories in one process on one core (the step of the
optimizer in it is the same for all b). shared(W) too: leaving gradients and statistics in the memory of
all, and adding up 1 / W of what W processes have left, a different part each time. messages(W): two orders
to W - 1 processes, and as many answers, one after another, that are there already. For two processes the
model stands beside a run. `one adds up`: the first process receives all statistics through pipes, merges
them and adds up all gradients, as it did until commit 6d9e48e. `4 each`: every process has four
trajectories, so that the batch grows with W.

Nothing else may run. What it does not know: memory that many cores read at the same time, clocks that fall
with the number of busy cores, a slowest process that all wait for.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from deltabeast.agents import Agent, Episodes, PartialUpdate
from deltabeast.agents.normaliser import merge
from deltabeast.launch.parsing import parse
from deltabeast.launch.processes.child import Child, send
from deltabeast.launch.training.local.contributions import Contributions
from deltabeast.launch.training.local.shared import Shared, new_file
from deltabeast.launch.training.plan import agent_spec, make_env, resolve

TRAJECTORIES, STEPS = 16, 20
PROCESSES = (1, 2, 4, 8, 16)
REPEATS = 31


def options(core: str, envs: int, workers: int) -> list[str]:
    shape = ["--num-envs", str(envs), "--batch-size", str(envs)]
    processes = ["--num-workers", str(workers), "--threads", str(workers)]
    return ["train", "--game", "pong", "--preset", "laptop", "--core", core, *shape, *processes]


def update_seconds(deltabeast: str, core: str, envs: int, workers: int, seconds: float) -> float:
    """Train for a while, and return the seconds that an update took after the first of them."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        command = [deltabeast, *options(core, envs, workers), "--log-seconds", "1", "--run-dir", str(run_dir)]
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not (run_dir / "logs.csv").is_file():
                time.sleep(0.1)
                if training.poll() is not None:
                    sys.exit(f"{' '.join(command)} ended with {training.returncode}")
            time.sleep(seconds)
        finally:
            training.terminate()
            training.wait()
        with (run_dir / "logs.csv").open(newline="") as file:
            rows = [(int(row["step"]), float(row["time"])) for row in csv.DictReader(file)][2:]
    if len(rows) < 2:
        sys.exit(f"too few updates in {seconds:g} s; give more --seconds")
    (first, began), (last, ended) = rows[0], rows[-1]
    return (ended - began) / ((last - first) / (envs * STEPS))


def milliseconds(work: Callable[[int], object]) -> float:
    """Return the median time of `work(n)`, which is done again and again."""
    spent = []
    for number in range(REPEATS):
        start = time.perf_counter()
        work(number)
        spent.append(1e3 * (time.perf_counter() - start))
    return statistics.median(spent)


def shared(agent: Agent, count: int) -> tuple[float, float]:
    """Return the milliseconds that an update's sums take processes together, and the first of them alone."""
    file = new_file(agent, count)
    memory = Shared(file, agent)
    os.close(file)
    memory.publish()
    rooms = memory.rooms(count)
    for parameter in agent.parameters():
        parameter.grad = torch.rand_like(parameter)
    assert agent.normaliser is not None
    moments = torch.ones_like(agent.normaliser.statistics)
    own = PartialUpdate({}, 1, 0, Episodes(), moments=moments)
    several = [Contributions(rooms, agent, index) for index in range(count)]
    for each in several:
        each.leave(own)
    together = milliseconds(lambda n: (several[0].leave(own), several[n % count].add_part(counted=True)))

    def alone(_: int) -> None:
        for other in rooms[1:]:
            rooms[0].gradients.add_(other.gradients)
        merge(moments, *(room.moments for room in rooms))

    return together, milliseconds(alone)


def _answer(connection: Connection) -> None:
    while True:
        try:
            send(connection, connection.recv())
        except (EOFError, OSError):
            return


def round_of_messages(count: int, update: PartialUpdate) -> float:
    """Return the milliseconds in which one process asks the others, and receives what they answer."""
    spent = []
    with ExitStack() as stack:
        children = [Child(f"other {index}", _answer) for index in range(count - 1)]
        for child in children:
            stack.callback(child.end)
        for _ in range(REPEATS):
            start = time.perf_counter()
            for child in children:
                child.send(update)
            between = time.perf_counter()
            time.sleep(0.003 * count)  # all have answered, or wait for room in their pipe
            again = time.perf_counter()
            for child in children:
                child.receive()
            spent.append(1e3 * (between - start + time.perf_counter() - again))
    return statistics.median(spent)


def messages(count: int, entries: int) -> tuple[float, float]:
    """Return the milliseconds of an update's messages: two rounds; one, with statistics in the answers."""
    update = PartialUpdate({str(n): 0.5 for n in range(12)}, 1, 0, Episodes())
    two = 2 * round_of_messages(count, update)
    # What they are asked is as large here as what they answer, and takes about as long.
    large = round_of_messages(count, replace(update, moments=np.ones((3, entries)))) / 2
    return two, two / 4 + large


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("deltabeast")
    parser.add_argument("--core", default="rdn")
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = parse([*options(given.core, 1, 1), "--run-dir", "unused"])
    resolve(config)
    agent = Agent(agent_spec(config, make_env(config, 1)))
    assert agent.normaliser is not None
    print("| processes | T, ms | shared, ms | messages, ms | steps/s | one adds up | 4 each | measured |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")

    def taken(envs: int, workers: int) -> float:
        return 1e3 * update_seconds(given.deltabeast, given.core, envs, workers, given.seconds)

    of = {envs: taken(envs, 1) for envs in (TRAJECTORIES // count for count in PROCESSES)}
    for count in PROCESSES:
        own = of[TRAJECTORIES // count]
        together, alone = shared(agent, count) if count > 1 else (0.0, 0.0)
        two, large = messages(count, agent.normaliser.statistics.shape[1]) if count > 1 else (0.0, 0.0)
        whole = TRAJECTORIES * STEPS
        updates = [
            (whole, own + together + two),
            (whole, own + alone + large),
            (4 * count * STEPS, of[4] + together + two),
        ]
        if count == 2:
            updates.append((whole, taken(TRAJECTORIES, count)))
        cells = [f"{value:.1f}" for value in (own, together, two)]
        cells += [f"{1e3 * steps / each:,.0f}" for steps, each in updates]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
