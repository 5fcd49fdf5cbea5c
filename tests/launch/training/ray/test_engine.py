"""What the Ray engine learns: the same as the local one, with one learner or two."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.vector import VectorEnv
from ray.cluster_utils import Cluster
from session_seed import SEED
from training_process import CARTPOLE, assert_same, metrics, newest, rows
from watched_run import SMALL, Watched

from deltabeast.agents import Agent
from deltabeast.agents.accelerate import ALL
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.parsing import parse
from deltabeast.launch.training import reading_ages
from deltabeast.launch.training.command import train
from deltabeast.launch.training.flat_parameters import flatten
from deltabeast.launch.training.local import engine as local_engine
from deltabeast.launch.training.plan import agent_spec, make_env, resolve
from deltabeast.launch.training.ray import actor_process
from deltabeast.launch.training.ray import cluster as ray_cluster
from deltabeast.launch.training.ray.actor_process import ActorProcess, Order
from deltabeast.launch.training.ray.cluster import Location, ObjectGone, Reply
from deltabeast.launch.training.ray.learner_process import LearnerProcess
from deltabeast.launch.training.ray.learners import Learners, Shard
from deltabeast.launch.training.ray.ledger import ShardId
from deltabeast.launch.training.ray.packing import unpack
from deltabeast.launch.training.ray.traffic import Traffic
from deltabeast.launch.training.reading_ages import ReadingAges

pytestmark = pytest.mark.timeout(400)


class Told:
    """Stands in for a cluster: calls are written down and never answered."""

    def __init__(self) -> None:
        self.tags: list[Any] = []

    def ask(self, handles: Sequence[Any], *_: Any, **__: Any) -> list[Any]:
        return [Location("one", 1, version("deltabeast")) for _ in handles]

    def call(self, *_: Any, tag: Any, returns: int = 1, group: str = "") -> list[Any]:
        self.tags.append(tag)
        return [None] * (returns - 1)


def test_a_learner_whose_unrolls_died_gets_others() -> None:
    """Those of one machine may all have been for the same learner, while the other has all it may have."""
    told = Told()
    learners = Learners(told, 2, 1, lambda rank: rank, in_order=False)  # type: ignore[arg-type]
    learners.begin(None, None, lambda _: None)
    for n in range(8):
        learners.add(Shard(ShardId(0, 0, n), None, "one"))
    learners.fetch()
    fetches = {rank: [tag for tag in told.tags if tag[2] == rank] for rank in (0, 1)}
    assert [tag[3].sequence for tag in fetches[0]] == [0, 2], "in turn"
    for tag in fetches[1]:
        assert isinstance(learners.handle(Reply(tag, error=ObjectGone())), Shard)
    told.tags.clear()
    learners.fetch()
    for tag in (*fetches[0], *told.tags):
        learners.handle(Reply(tag, True))
    assert learners.begin_update()


def test_unrolls_are_learned_from_as_they_were_handed_over(seed: int) -> None:
    """Not by the number of their actors, however they arrive."""
    told = Told()
    learners = Learners(told, 1, 4, lambda rank: rank, in_order=True)  # type: ignore[arg-type]
    learners.begin(None, None, lambda _: None)
    turns = [ShardId(actor, 0, n) for n, actor in ((0, 2), (0, 0), (0, 1), (1, 2))]
    for identity in turns:
        learners.add(Shard(identity, None, "one"))
    learners.fetch()
    fetches = list(told.tags)
    random.shuffle(fetches)
    for tag in fetches:
        learners.handle(Reply(tag, True))
    assert learners.begin_update()
    assert [shard.identity for shard in learners._learning] == turns


def test_a_stop_before_the_learner_is_there_keeps_the_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    """Until it has been told what the run is, a learner has the weights of none."""
    train(parse(["train", *CARTPOLE, "--steps", "40", "--run-dir", str(tmp_path)]))
    _, weights, state = newest(tmp_path)
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path, stack, *CARTPOLE[:-2], *SMALL, "--steps", "80")
        one.run.stop.set()
        one.run.run()
    assert "stopped at 40 of 80 steps" in one.said()
    step, kept, found = newest(tmp_path)
    assert step == 40
    assert_same(weights, kept, "weights")
    assert_same(state["learner"], found["learner"], "learner")


LAYOUTS = {
    "as many environments as columns": ("4", "4", "1"),
    "unrolls cut up": ("8", "4", "1"),
    "unrolls of two actors joined": ("4", "8", "2"),
    "two of three actors in turn": ("4", "8", "3"),
}


@pytest.mark.parametrize(("minibatch", "length"), [("2", 5), pytest.param("4", 260, marks=pytest.mark.long)])
def test_a_batch_is_learned_from_several_times_as_by_the_local_engine(
    cluster: Cluster, minibatch: str, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where that can be told, how far back the agent reads is logged by both."""
    monkeypatch.setattr(local_engine, "available_cores", lambda: 1)  # as many threads as a learner
    reuse = ("--passes", "3", "--minibatch-size", minibatch, "--optimizer", "adam", "--vtrace-lambda", "0.9")
    reuse = (*reuse, "--normalise-values")
    steps = 4 * 4 * length
    lengths = ("--unroll-length", str(length), "--steps", str(steps))
    arguments = [*CARTPOLE[:-2], "--deterministic", "--log-seconds", "0", *lengths, *reuse]
    train(parse(["train", *arguments, "--run-dir", str(tmp_path / "local")]))
    with ExitStack() as stack:
        Watched(cluster, tmp_path / "ray", stack, *arguments, *SMALL).run.run()
    (_, weights, state), (_, others, other) = newest(tmp_path / "local"), newest(tmp_path / "ray")
    assert_same(weights, others, "weights")
    assert_same(state["learner"], other["learner"], "learner")
    assert state["learner"]["steps"] == steps and state["learner"]["version"] == 4 * 3 * 4 // int(minibatch)
    for engine in ("local", "ray"):
        ages = [row["read_age"] for row in rows(tmp_path / engine)]
        assert [bool(age) for age in ages] == [False] * 3 + [length == 260], engine


@pytest.mark.parametrize("learners", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_replay_buffer_goes_on_where_a_run_was_stopped(
    cluster: Cluster, learners: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In lock-step: as if it had not been; with one learner, as under the local engine."""
    monkeypatch.setattr(local_engine, "available_cores", lambda: 1)  # as many threads as a learner
    replay = ("--replay-ratio", "1", "--replay-buffer", "80", "--passes", "2")
    replay += ("--burn-in", "5") if learners == "1" else ()
    arguments = [*CARTPOLE[:-2], "--deterministic", "--log-seconds", "0", "--steps", "160", *replay]
    given = [*arguments, *SMALL, "--num-learners", learners]

    def on_cluster(folder: str, stop_at: int | None = None) -> str:
        with ExitStack() as stack:
            one = Watched(cluster, tmp_path / folder, stack, *given)
            write = one.run.log.write

            def stopping(step: int, row: dict[str, float]) -> None:
                write(step, row)
                if step == stop_at:
                    one.run.stop.set()

            one.run.log.write = stopping  # type: ignore[method-assign]
            one.run.run()
        return one.said()

    if learners == "1":
        train(parse(["train", *arguments, "--run-dir", str(tmp_path / "whole")]))
    else:
        on_cluster("whole")
    assert "the replay buffer takes" in on_cluster("parts", stop_at=100)
    assert 100 <= newest(tmp_path / "parts")[0] < 160
    on_cluster("parts")
    (_, weights, state), (_, others, other) = (newest(tmp_path / name) for name in ("whole", "parts"))
    assert_same(weights, others, "weights")
    assert_same(state["replay"], other["replay"], "replay")
    assert len(state["replay"]) == int(learners) and state["replay"][0]["added"] == 8
    told = metrics(tmp_path / "whole")
    assert told == [{name: row[name] for name in told[0]} for row in metrics(tmp_path / "parts")]
    assert [float(row["reuse"]) for row in told] == [2.0] + [4.0] * 7


@pytest.mark.parametrize("layout", [random.Random(SEED).choice(list(LAYOUTS))])
def test_all_engines_learn_the_same(
    cluster: Cluster, layout: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In lock-step: the local engine and one learner on a cluster bit for bit, even if one goes on where the
    other stopped; two learners but for the order of the sums, which threads change too."""
    monkeypatch.setattr(local_engine, "available_cores", lambda: 1)  # as many threads as a learner
    num_envs, batch_size, num_actors = LAYOUTS[layout]
    updates, batch = 12, 5 * int(batch_size)
    sizes = ("--num-envs", num_envs, "--batch-size", batch_size, "--num-actors", num_actors)
    exact = ("--deterministic", "--log-seconds", "0", "--steps", str(updates * batch), "--seed", str(seed))
    arguments = [*CARTPOLE[:-2], *sizes, *exact]
    given = ["train", *arguments, "--run-dir"]
    train(parse([*given, str(tmp_path / "local")]))
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path / "one", stack, *arguments, *SMALL)
        stop_at = random.randrange(2, updates) * batch
        mark = one.run.log.write

        def write(step: int, row: dict[str, float]) -> None:
            mark(step, row)
            if step == stop_at:
                one.run.stop.set()

        one.run.log.write = write  # type: ignore[method-assign]
        one.run.run()
    assert stop_at <= newest(tmp_path / "one")[0] < stop_at + 3 * batch, "stopped"
    train(parse([*given, str(tmp_path / "one")]))
    (_, expected, state), (_, weights, other) = newest(tmp_path / "local"), newest(tmp_path / "one")
    assert_same(expected, weights, "weights")
    for part in ("learner", "actors", "scores", "turn"):  # the global generators made other things before
        assert_same(state[part], other[part], part)
    told = metrics(tmp_path / "local")
    assert told == [{name: row[name] for name in told[0]} for row in metrics(tmp_path / "one")]

    with ExitStack() as stack:
        two = Watched(cluster, tmp_path / "two", stack, *arguments, *SMALL, "--num-learners", "2")
        two.run.run()
        assert len(set(place.pid for place in two.engine.learners.places)) == 2
    step, weights, state = newest(tmp_path / "two")
    assert step == updates * batch and state["learner"]["version"] == updates
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-6)
    for a, b in zip(metrics(tmp_path / "local"), metrics(tmp_path / "two"), strict=True):
        assert a["step"] == b["step"] and a["episodes"] == b["episodes"]
        for name in ("total_loss", "grad_norm", "entropy", "policy_lag"):
            assert float(a[name]) == pytest.approx(float(b[name]), rel=1e-3, abs=1e-5), name


def test_processes_use_the_cores_that_they_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--engine", "ray", "--actor-cpus", "3", "--learner-cpus", "2"]
    config = parse(["train", *CARTPOLE[:-2], *given])
    resolve(config)
    emulators: list[int | None] = []

    def env_takes(config: TrainConfig, threads: int | None) -> VectorEnv:
        emulators.append(threads)
        return make_env(config, threads)

    monkeypatch.setattr(ray_cluster, "locate", lambda: None)
    monkeypatch.setattr(actor_process, "make_env", env_takes)
    spec, before = agent_spec(config, make_env(config, 1)), torch.get_num_threads()
    try:
        ActorProcess(config, spec, ALL, 1, 4, None).begin()
        assert torch.get_num_threads() == 3 and emulators == [3]
        LearnerProcess(config, spec, ALL, "cpu", 0).begin()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_first_actor_tells_how_far_back_it_reads(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of its first environment, with the weights that it acts with; the newest ones are logged, once."""
    monkeypatch.setattr(reading_ages, "BEYOND", (5, 10))  # of so few steps
    sizes = ("--num-envs", "2", "--batch-size", "2", "--unroll-length", "15")
    config = parse(["train", *CARTPOLE[:-2], *sizes, "--engine", "ray"])
    resolve(config)
    spec = agent_spec(config, make_env(config, 1))
    agent = Agent(spec)
    monkeypatch.setattr(ray_cluster, "locate", lambda: None)
    monkeypatch.setattr(ray_cluster, "fetch", lambda *_: flatten(agent))
    process = ActorProcess(config, spec, ALL, 1, 1, None, first_env=6, explains=True)
    silent = ActorProcess(config, spec, ALL, 1, 1, None)
    ages = {env: ReadingAges(agent, env) for env in (6, 7)}
    traffic = Traffic(1)
    for each in (process, silent):
        each.begin()
    for number in range(3):
        header, *shards = process.collect(Order(number, [None]))
        assert silent.collect(Order(number, [None]))[0].reading_ages == {}
        for shard in shards:
            for each in ages.values():
                each.add(unpack(shard, torch.device("cpu")))
        told = [each.sample() for each in ages.values()]
        if number == 2:
            assert header.reading_ages == told[0] != told[1]
        traffic.add(0, header)
    assert header.reading_ages["read_age"] >= 0
    traffic.add(0, replace(header, reading_ages={}))  # nothing new
    assert traffic.row([None]).items() >= header.reading_ages.items()
    assert "read_age" not in traffic.row([None])
