"""How fast would a training be on more cores than this machine has, one process on each?

    python results/throughput/scaling.py DELTABEAST [--core rdn] [--seconds 15] [--csv FILE]

A model: an update of W processes, each with 16 / W of the 16 trajectories of `--preset laptop`, takes

    T(16 / W) + shared(W) + messages(W)

T(b) is measured: the time of an update of b trajectories in one process on one core (the step of the
optimizer in it is the same for all b). shared(W) too: leaving gradients and statistics in the memory of
all, and adding up 1 / W of what W processes have left, a different part each time, so that it is in no
cache. messages(W): two orders to W - 1 processes, and as many answers, one after another, that are there
already. For two processes the model stands beside a run. `alone` is what it would be if the first process
added up everything, and statistics came through pipes: as before November 2026. `larger` has 16
trajectories for each process, so W times the batch.

Nothing else may run. What it does not know: memory that many cores read at the same time, clocks that fall
with the number of busy cores, a slowest process that all wait for.
"""

from __future__ import annotations

import argparse
import csv
import pickle
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from deltabeast.agents import Agent, Episodes, PartialUpdate
from deltabeast.agents.normaliser import merge
from deltabeast.launch.cli import parse
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
        while not (run_dir / "logs.csv").is_file():
            time.sleep(0.1)
            if training.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with {training.returncode}")
        time.sleep(seconds)
        training.send_signal(signal.SIGTERM)
        training.wait()
        with (run_dir / "logs.csv").open(newline="") as file:
            rows = [(int(row["step"]), float(row["time"])) for row in csv.DictReader(file)][2:]
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
    """Return the milliseconds that an update's sums take processes together, and one of them alone."""
    memory = Shared(new_file(agent, count), agent)
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
    grads = [room.gradients for room in rooms]

    def alone(_: int) -> None:
        for other in grads[1:]:
            grads[0].add_(other)
        merge(moments, *(room.moments for room in rooms))

    pickled = pickle.dumps(moments.numpy())
    piped = milliseconds(lambda _: pickle.loads(pickled)) + milliseconds(
        lambda _: pickle.dumps(moments.numpy())
    )
    return together, milliseconds(alone) + (count - 1) * piped


def _echo(connection: Connection) -> None:
    while True:
        try:
            send(connection, connection.recv())
        except (EOFError, OSError):
            return


def messages(count: int) -> float:
    """Return the milliseconds of one round of orders and answers."""
    children = [Child(f"echo {index}", _echo) for index in range(count - 1)]
    answer = PartialUpdate({str(n): 0.5 for n in range(12)}, 1, 0, Episodes())

    def ask(_: int) -> None:
        for child in children:
            child.send(answer)

    spent = []
    for number in range(REPEATS):
        start = time.perf_counter()
        ask(number)
        between = time.perf_counter()
        time.sleep(0.003 * count)  # all have answered
        again = time.perf_counter()
        for child in children:
            child.receive()
        spent.append(1e3 * (between - start + time.perf_counter() - again))
    for child in children:
        child.close()
        child.end(1.0)
    return statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("deltabeast")
    parser.add_argument("--core", default="rdn")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = parse([*options(given.core, 1, 1), "--run-dir", "unused"])
    resolve(config)
    agent = Agent(agent_spec(config, make_env(config, 1)))
    rows = []
    print("| processes | T, ms | shared | messages | update | steps/s | alone | larger | measured |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    whole = 0.0
    for count in PROCESSES:
        envs = TRAJECTORIES // count
        alone_in = 1e3 * update_seconds(given.deltabeast, given.core, envs, 1, given.seconds)
        whole = whole or alone_in
        together, one = shared(agent, count) if count > 1 else (0.0, 0.0)
        told = 2 * messages(count) if count > 1 else 0.0
        steps = 1e3 * TRAJECTORIES * STEPS
        update = alone_in + together + told
        speeds = [
            steps / update,
            steps / (alone_in + one + told / 2),
            count * steps / (whole + together + told),
        ]
        measured = ""
        if count == 2:
            taken = update_seconds(given.deltabeast, given.core, TRAJECTORIES, 2, given.seconds)
            measured = f"{TRAJECTORIES * STEPS / taken:,.0f}"
        times = [f"{value:.1f}" for value in (alone_in, together, told, update)]
        rows.append([count, *times, *(f"{speed:.0f}" for speed in speeds), measured.replace(",", "")])
        print(
            f"| {count} | {' | '.join(times)} | {' | '.join(f'{s:,.0f}' for s in speeds)} | {measured} |",
            flush=True,
        )
    if given.csv is not None:
        with given.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(
                [
                    "processes",
                    "t_ms",
                    "shared_ms",
                    "messages_ms",
                    "update_ms",
                    "steps",
                    "alone",
                    "larger",
                    "measured",
                ]
            )
            writer.writerows(rows)


if __name__ == "__main__":
    main()
