"""What may die on a cluster while a run goes on, and what becomes of the run."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from session_seed import SEED
from training_process import CARTPOLE, TINY, assert_same, last_step, newest, rows
from watched_run import NUMBERED, SMALL, STORE, UNROLL, Watched, assert_accounts_balance, speed, watched

from deltabeast.launch.errors import RunError
from deltabeast.launch.parsing import parse
from deltabeast.launch.training.command import train
from deltabeast.launch.training.engine import ActorError
from deltabeast.launch.training.local import engine as local_engine
from deltabeast.launch.training.ray import cluster as ray_cluster
from deltabeast.launch.training.ray.cluster import Location, check_version

pytestmark = pytest.mark.timeout(400)


@pytest.mark.long
def test_nodes_come_and_go(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    with watched(cluster, tmp_path / "run", *NUMBERED) as one:
        one.waits_for(lambda: one.engine.actors.alive() == 2)
        one.learns(10 * UNROLL)
        at_first = speed(one)
        actor = random.choice(one.engine.actors.all)
        before = actor.location
        assert before is not None
        (node,) = [n for n in cluster.worker_nodes if n.node_id[:6] == before.node[-6:]]
        cluster.remove_node(node, allow_graceful=False)
        one.waits_for(lambda: f"actor {actor.index} ({before}) died" in one.said())
        one.learns(10 * UNROLL)
        assert one.engine.actors.alive() == 1, "the other goes on"
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        one.waits_for(lambda: one.engine.actors.alive() == 2)
        assert f"actor {actor.index} (node " in one.said() and ") is back" in one.said()
        assert actor.location is not None and actor.location.node != before.node
        one.waits_for(lambda: any(process == actor.location.pid % 8192 for process, _ in one.episodes))
        one.waits_for(lambda: speed(one) > 0.3 * at_first)
    assert_accounts_balance(one)
    assert newest(tmp_path / "run")[0] == one.engine.steps == last_step(tmp_path / "run")
    logged = rows(tmp_path / "run")
    assert logged[-1]["actor_restarts"] == "1" and logged[-1]["unrolls_lost"] == "0"
    assert "1" in {row["actors"] for row in logged}


DEATHS = ["learner", "both"] + ["actor"] * (SEED != 1)
"""An actor alone dies with its node in the test before."""


@pytest.mark.long
def test_processes_are_killed_at_random_moments(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    """Actors and learners, once at the same time: nothing is lost that had been handed over, and nothing
    learned from twice."""
    often = ("--checkpoint-minutes", "0.02")
    with watched(cluster, tmp_path / "run", *NUMBERED, *often) as one:
        one.waits_for(lambda: one.engine.actors.alive() == 2)
        at_first = speed(one)
        for victims in random.sample(DEATHS, len(DEATHS)):
            one.learns(random.randrange(UNROLL, 20 * UNROLL))
            time.sleep(random.random() * 0.1)
            killed = {one.learner()} if victims != "actor" else set()
            killed |= {random.choice(one.actors())} if victims != "learner" else set()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            one.waits_for(lambda k=killed: one.everyone() and not one.everyone() & k)
        one.learns(20 * UNROLL)
        one.waits_for(lambda: speed(one) > 0.3 * at_first)
    assert_accounts_balance(one)
    assert one.engine.learner_restarts.total == 2, one.said()
    assert one.engine.actors.restarts == len(DEATHS) - 1, one.said()
    assert one.said().count("resuming from step") == 2
    steps = [int(row["step"]) for row in rows(tmp_path / "run")]
    assert steps == sorted(set(steps)) and steps[-1] == one.engine.steps
    assert newest(tmp_path / "run")[2]["unrolls"] == one.engine.ledger.counts


def test_a_learner_that_dies_of_being_saved_begins_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last checkpoint of all, when the steps are done; with a core of one's own."""
    sizes = TINY[TINY.index("--num-envs") : -2]
    arguments = ("--env", "training_envs:Numbered-v0", "--core", "training_envs:NoisyCore", *sizes, *SMALL)
    arguments += ("--steps", "200")
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path, stack, *arguments)
        ask = one.engine.learners.state
        killed: list[int] = []

        def kill_and_ask(patience: Callable[[float], None]) -> Any:
            if not killed:
                killed.append(one.learner())
                os.kill(killed[0], signal.SIGKILL)
            return ask(patience)

        monkeypatch.setattr(one.engine.learners, "state", kill_and_ask)
        one.run.run()
    assert f"process {killed[0]}) died: " in one.said() and "resuming from step 0 in 1 s" in one.said()
    assert newest(tmp_path)[0] == 200 and one.engine.ledger.counts["undone"] == 10
    assert_accounts_balance(one)


@pytest.mark.long
def test_a_learner_s_death_ends_a_deterministic_run_at_its_checkpoint(
    cluster: Cluster, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same command ends where an undisturbed run does."""
    monkeypatch.setattr(local_engine, "available_cores", lambda: 1)  # as many threads as a learner
    arguments = [*CARTPOLE[:-2], "--deterministic", "--seed", str(seed), "--milestone-steps", "40"]
    arguments += ["--steps", "200", "--log-seconds", "0"]
    train(parse(["train", *arguments, "--run-dir", str(tmp_path / "whole")]))
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path / "run", stack, *arguments, *SMALL)
        mark = one.run.log.write

        def write(step: int, row: dict[str, float]) -> None:
            mark(step, row)
            if step == 100:
                os.kill(one.learner(), signal.SIGKILL)

        monkeypatch.setattr(one.run.log, "write", write)
        with pytest.raises(RunError, match=r"died: .*; run the same command to go on; step 80 is saved"):
            one.run.run()
    step, _, state = newest(tmp_path / "run")
    assert step == state["learner"]["steps"] == 80
    train(parse(["train", *arguments, "--run-dir", str(tmp_path / "run")]))
    (_, expected, _), (_, weights, _) = newest(tmp_path / "whole"), newest(tmp_path / "run")
    assert_same(expected, weights, "weights")


@pytest.mark.long
def test_a_loss_that_is_not_finite_ends_the_run_wherever_it_is(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ("--env", "training_envs:Overflows-v0", *TINY[:-2], *SMALL, "--num-learners", "2")
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path, stack, *arguments, "--steps", "1000")
        with pytest.raises(
            RunError, match=r"update 19 is not finite: first in behaviour logits; step 360 is saved"
        ):
            one.run.run()
    step, weights, _ = newest(tmp_path)
    assert step == 360 and all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.long
def test_an_actor_that_fails_again_and_again_ends_the_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltabeast.launch.training.ray.restarts.BUDGET", 1)
    monkeypatch.setattr("deltabeast.launch.training.ray.actors.BUDGET", 1)
    with ExitStack() as stack:
        arguments = ("--env", "training_envs:Raises-v0", *TINY[:-2], *SMALL, "--steps", "100k")
        one = Watched(cluster, tmp_path, stack, *arguments)
        with pytest.raises(RunError, match=r"actor 0 failed 2 times in a row.*emulator broke.*; step \d+ is"):
            one.run.run()
    assert 'raise KeyError("the emulator broke")' in one.said(), "its traceback"
    assert "it is restarted in 1 s" in one.said() and "actor 0 (node" in one.said()
    assert newest(tmp_path)[0] >= 2 * 18 * UNROLL - 2 * UNROLL, "all that both lives had handed over"


@pytest.mark.parametrize("unchecked", ["actors", "learners"])
def test_a_machine_with_another_version_is_named_with_what_it_needs(
    unchecked: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ActorError, match=r"node 10.0.0.7, process 9 has deltabeast of an older version"):
        check_version(Location("10.0.0.7", 9))
    check_version(Location("10.0.0.7", 9, version("deltabeast")))
    monkeypatch.setattr(f"deltabeast.launch.training.ray.{unchecked}.check_version", lambda place: None)
    monkeypatch.setattr(ray_cluster, "version", lambda name: "9.9")  # of this machine, where the run is
    theirs = re.escape(version("deltabeast"))
    named = rf"node \S+, process \d+ has deltabeast {theirs}, and this machine 9.9: install the same"
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path, stack, *CARTPOLE[:-2], *SMALL, "--steps", "100k")
        with pytest.raises(RunError, match=named):
            one.run.run()


def test_a_silent_actor_is_named(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--env", "training_envs:Stalls-v0", *TINY[:-2], *SMALL, "--steps", "100k")
    with watched(cluster, tmp_path, *arguments) as one:
        one.waits_for(lambda: one.engine.steps == 18 * UNROLL)
        monkeypatch.setattr("deltabeast.launch.processes.supervision.SILENCE", 0.4)
        one.waits_for(lambda: "has handed over nothing for" in one.said())
        one.waits_for(lambda: "no update for" in one.said())
    assert "actors: 1 acting, actor 0 (node" in one.said()
    assert newest(tmp_path)[0] == 18 * UNROLL, "it could be stopped all the same"
