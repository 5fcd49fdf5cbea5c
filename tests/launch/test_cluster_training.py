"""Training on a Ray cluster of three nodes on this machine: what it learns, and what may die meanwhile."""

from __future__ import annotations

import io
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import training_envs
from rich.console import Console
from training_process import TINY, last_step, newest, rows

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from deltabeast.agents import Episodes
from deltabeast.launch.cli import parse
from deltabeast.launch.cluster.engine import ClusterTrainer

pytestmark = pytest.mark.timeout(200)

STORE = 80 << 20
SMALL = ("--actor-cpus", "0.1", "--learner-cpus", "0.1")
"""Reservations that leave room for all on any node."""
UNROLL = 20
"""Agent steps of TINY's unrolls."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with room for a learner, and two nodes with room for an actor each."""
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(training_envs.__file__).parent), path])
    config = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500,
              "health_check_failure_threshold": 4}  # fmt: skip
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "_system_config": config}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=STORE)
    made.wait_for_nodes()
    yield made
    made.shutdown()


class Watched:
    """A run on the cluster whose lines and finished episodes are kept."""

    def __init__(self, cluster: Cluster, run_dir: Path, stack: ExitStack, *arguments: str) -> None:
        given = ["train", "--engine", "ray", "--ray-address", cluster.address, *arguments]
        self.text = io.StringIO()
        console = Console(file=self.text, width=200)
        self.run = ClusterTrainer(parse([*given, "--run-dir", str(run_dir)]), stack, console)
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
        places = [*self.run.learners.places, *(slot.where for slot in self.run.fleet.slots)]
        alive = self.run.learners.running and self.run.fleet.alive() == 2
        return {place.pid for place in places if place is not None} if alive else set()

    def learner(self) -> int:
        return self.run.learners.places[0].pid

    def actors(self) -> list[int]:
        return [slot.where.pid for slot in self.run.fleet.slots if slot.where is not None]

    def waits_for(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited in vain: {self.run.stages()}; it said:\n{self.said()}"
            time.sleep(0.02)

    def learns(self, steps: int) -> None:
        """Until so many more agent steps have been learned from."""
        goal = self.run.steps + steps
        self.waits_for(lambda: self.run.steps >= goal)


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
    counts = one.run.ledger.counts
    assert counts["lost"] == counts["doubled"] == 0, counts
    assert one.run.steps == counts["learned"] * UNROLL
    assert len(one.episodes) == counts["learned"] + counts["undone"]
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for process, number in one.episodes:
        numbers[process].append(number)
    for process, found in numbers.items():
        assert sorted(found) == list(range(1, len(found) + 1)), process


NUMBERED = ("--env", "training_envs:Numbered-v0", *TINY[:-2], "--num-actors", "2", "--steps", "100M",
            "--log-seconds", "0.5")  # fmt: skip


def speed(one: Watched, seconds: float = 2.0) -> float:
    before = one.run.steps
    time.sleep(seconds)
    return (one.run.steps - before) / seconds


def test_nodes_come_and_go(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    with watched(cluster, tmp_path / "run", *NUMBERED) as one:
        one.waits_for(lambda: one.run.fleet.alive() == 2)
        one.learns(10 * UNROLL)
        at_first = speed(one)
        slot = random.choice(one.run.fleet.slots)
        before = slot.where
        assert before is not None
        (node,) = [n for n in cluster.worker_nodes if n.node_id[:6] == before.node[-6:]]
        cluster.remove_node(node, allow_graceful=False)
        one.waits_for(lambda: f"actor {slot.index} ({before}) died" in one.said())
        one.learns(10 * UNROLL)
        assert one.run.fleet.alive() == 1, "the other goes on"
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        one.waits_for(lambda: one.run.fleet.alive() == 2)
        assert f"actor {slot.index} (node " in one.said() and ") is back" in one.said()
        assert slot.where is not None and slot.where.node != before.node
        one.waits_for(lambda: any(process == slot.where.pid % 8192 for process, _ in one.episodes))
        one.waits_for(lambda: speed(one) > 0.5 * at_first)
    assert_accounts_balance(one)
    assert newest(tmp_path / "run")[0] == one.run.steps == last_step(tmp_path / "run")
    logged = rows(tmp_path / "run")
    assert logged[-1]["actor_restarts"] == "1" and logged[-1]["unrolls_lost"] == "0"
    assert "1" in {row["actors"] for row in logged}


def test_processes_are_killed_at_random_moments(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    """Actors and learners, once at the same time: nothing is lost that had been handed over, and nothing
    learned from twice."""
    often = ("--checkpoint-minutes", "0.02")
    with watched(cluster, tmp_path / "run", *NUMBERED, *often) as one:
        one.waits_for(lambda: one.run.fleet.alive() == 2)
        at_first = speed(one)
        for victims in random.sample(["actor", "learner", "both"], 3):
            one.learns(random.randrange(UNROLL, 20 * UNROLL))
            time.sleep(random.random() * 0.1)
            killed = {one.learner()} if victims != "actor" else set()
            killed |= {random.choice(one.actors())} if victims != "learner" else set()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            one.waits_for(lambda k=killed: one.everyone() and not one.everyone() & k)
        one.learns(20 * UNROLL)
        one.waits_for(lambda: speed(one) > 0.5 * at_first)
    assert_accounts_balance(one)
    assert one.run.learner_restarts.total == 2 and one.run.fleet.restarts == 2, one.said()
    assert one.said().count("begins again from step") == 2
    steps = [int(row["step"]) for row in rows(tmp_path / "run")]
    assert steps == sorted(set(steps)) and steps[-1] == one.run.steps
    assert newest(tmp_path / "run")[2]["unrolls"] == one.run.ledger.counts
