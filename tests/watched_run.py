"""Runs on a Ray cluster, watched while they go on."""

from __future__ import annotations

import io
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import training_envs
from ray.cluster_utils import Cluster
from rich.console import Console
from training_process import TINY

from deltabeast.agents import Episodes
from deltabeast.launch.parsing import parse
from deltabeast.launch.training.plan import resolve
from deltabeast.launch.training.ray.engine import RayEngine
from deltabeast.launch.training.run import Run

STORE = 80 << 20
SMALL = ("--actor-cpus", "0.1", "--learner-cpus", "0.1")
"""Reservations that leave room for all on any node."""
UNROLL = 20
"""Agent steps of TINY's unrolls."""


class Watched:
    """A run on the cluster whose lines and finished episodes are kept."""

    def __init__(self, cluster: Cluster, run_dir: Path, stack: ExitStack, *arguments: str) -> None:
        given = ["train", "--engine", "ray", "--ray-address", cluster.address, *arguments]
        self.text = io.StringIO()
        console = Console(file=self.text, width=200)
        config = parse([*given, "--run-dir", str(run_dir)])
        resolve(config)
        self.engine = RayEngine(config, stack, console)
        self.run = Run(config, self.engine, stack, console)
        self.episodes: list[tuple[int, int]] = []
        """process and number of those that have been learned from"""
        add = self.run.scores.add

        def keep(episodes: Episodes) -> None:
            told = [training_envs.which(score) for score in episodes.game_returns]
            self.episodes += [one for one in told if one is not None]
            add(episodes)

        self.run.scores.add = keep  # type: ignore[method-assign]

    def said(self) -> str:
        return self.text.getvalue()

    def everyone(self) -> set[int]:
        """The processes, if all are there."""
        places = [*self.engine.learners.places, *(actor.location for actor in self.engine.actors.all)]
        alive = self.engine.learners.running and self.engine.actors.alive() == 2
        return {place.pid for place in places if place is not None} if alive else set()

    def learner(self) -> int:
        return self.engine.learners.places[0].pid

    def actors(self) -> list[int]:
        return [actor.location.pid for actor in self.engine.actors.all if actor.location is not None]

    def waits_for(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited in vain: {self.engine.stages()}; it said:\n{self.said()}"
            time.sleep(0.02)

    def learns(self, steps: int) -> None:
        """Until so many more agent steps have been learned from."""
        goal = self.engine.steps + steps
        self.waits_for(lambda: self.engine.steps >= goal)


@contextmanager
def watched(cluster: Cluster, run_dir: Path, *arguments: str) -> Iterator[Watched]:
    """The run goes on in the meantime; at the end it is asked to stop."""
    with ExitStack() as stack:
        one = Watched(cluster, run_dir, stack, *arguments)
        failures: list[BaseException] = []

        def go() -> None:
            try:
                one.run.run()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        try:
            yield one
        finally:
            one.run.stop.set()
            thread.join(60)
        assert not thread.is_alive(), one.said()
        assert not failures, f"{failures[0]!r}\n{one.said()}"


def assert_accounts_balance(one: Watched) -> None:
    """By the ledger, and by the episodes themselves, one an unroll: each process's are 1, 2, 3, ..."""
    counts = one.engine.ledger.counts
    assert counts["lost"] == counts["doubled"] == 0, counts
    assert one.engine.steps == counts["learned"] * UNROLL
    assert len(one.episodes) == counts["learned"] + counts["undone"]
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for process, number in one.episodes:
        numbers[process].append(number)
    for process, found in numbers.items():
        assert sorted(found) == list(range(1, len(found) + 1)), process


NUMBERED = ("--env", "training_envs:Numbered-v0", *TINY[:-2], "--num-actors", "2", "--steps", "100M",
            "--log-seconds", "0.5")  # fmt: skip


def speed(one: Watched, seconds: float = 1.0) -> float:
    before = one.engine.steps
    time.sleep(seconds)
    return (one.engine.steps - before) / seconds
