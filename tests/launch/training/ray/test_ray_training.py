"""Training on a Ray cluster of three nodes on this machine: what it learns, and what may die meanwhile."""

from __future__ import annotations

import io
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
import training_envs
from gymnasium.vector import VectorEnv
from processes import alive, command, descendants, family, listening
from ray.cluster_utils import Cluster
from rich.console import Console
from session_seed import SEED
from training_process import CARTPOLE, TINY, assert_same, last_step, metrics, newest, rows

from deltabeast.agents import Episodes
from deltabeast.launch.cli import parse
from deltabeast.launch.config import TrainConfig
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.training import command as local_engine
from deltabeast.launch.training.command import train
from deltabeast.launch.training.local.workers import make_env
from deltabeast.launch.training.plan import agent_spec
from deltabeast.launch.training.ray import cluster as ray_cluster
from deltabeast.launch.training.ray.actor_process import ActorProcess
from deltabeast.launch.training.ray.cluster import ObjectGone, Reply
from deltabeast.launch.training.ray.engine import ClusterTrainer
from deltabeast.launch.training.ray.learner_process import LearnerProcess
from deltabeast.launch.training.ray.learners import Learners, Piece
from deltabeast.launch.training.ray.ledger import Identity

pytestmark = pytest.mark.timeout(180)

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
        one.waits_for(lambda: speed(one) > 0.3 * at_first)
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
        one.waits_for(lambda: speed(one) > 0.3 * at_first)
    assert_accounts_balance(one)
    assert one.run.learner_restarts.total == 2 and one.run.fleet.restarts == 2, one.said()
    assert one.said().count("begins again from step") == 2
    steps = [int(row["step"]) for row in rows(tmp_path / "run")]
    assert steps == sorted(set(steps)) and steps[-1] == one.run.steps
    assert newest(tmp_path / "run")[2]["unrolls"] == one.run.ledger.counts


def test_a_learner_that_dies_of_being_saved_begins_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last checkpoint of all, when the steps are done; with a core of one's own."""
    sizes = TINY[TINY.index("--num-envs") : -2]
    arguments = ("--env", "training_envs:Numbered-v0", "--core", "training_envs:NoisyCore", *sizes, *SMALL)
    arguments += ("--steps", "200")
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path, stack, *arguments)
        ask = one.run.learners.state
        killed: list[int] = []

        def kill_and_ask(patience: Callable[[float], None]) -> Any:
            if not killed:
                killed.append(one.learner())
                os.kill(killed[0], signal.SIGKILL)
            return ask(patience)

        monkeypatch.setattr(one.run.learners, "state", kill_and_ask)
        one.run.run()
    assert f"process {killed[0]}) died: " in one.said() and "begins again from step 0 in 1 s" in one.said()
    assert newest(tmp_path)[0] == 200 and one.run.ledger.counts["undone"] == 10
    assert_accounts_balance(one)


class Told:
    """Stands in for a cluster: calls are written down and never answered."""

    def __init__(self) -> None:
        self.tags: list[Any] = []

    def ask(self, handles: Sequence[Any], *_: Any, **__: Any) -> list[Any]:
        return [None for _ in handles]

    def call(self, *_: Any, tag: Any, returns: int = 1, group: str = "") -> list[Any]:
        self.tags.append(tag)
        return [None] * (returns - 1)


def test_a_learner_whose_unrolls_died_gets_others() -> None:
    """Those of one machine may all have been for the same learner, while the other has all it may have."""
    told = Told()
    learners = Learners(told, 2, 1, lambda rank: rank, in_order=False)  # type: ignore[arg-type]
    learners.begin(None, None, lambda _: None)
    for n in range(8):
        learners.add(Piece(Identity(0, 0, n), None, "one"))
    learners.bring()
    fetches = {rank: [tag for tag in told.tags if tag[2] == rank] for rank in (0, 1)}
    assert [tag[3].sequence for tag in fetches[0]] == [0, 2], "in turn"
    for tag in fetches[1]:
        assert isinstance(learners.take(Reply(tag, error=ObjectGone())), Piece)
    told.tags.clear()
    learners.bring()
    for tag in (*fetches[0], *told.tags):
        learners.take(Reply(tag, True))
    assert learners.begin_update()


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
}


@pytest.mark.parametrize("layout", [random.Random(SEED).choice(list(LAYOUTS))])
def test_all_engines_learn_the_same(
    cluster: Cluster, layout: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In lock-step: the local engine and one learner on a cluster bit for bit, even if one goes on where the
    other stopped; two learners but for the order of the sums, which threads change too."""
    monkeypatch.setattr(local_engine, "available_cores", lambda: 1)  # as many threads as a learner
    num_envs, batch_size, num_actors = LAYOUTS[layout]
    updates, batch = 30, 5 * int(batch_size)
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
        assert len(set(place.pid for place in two.run.learners.places)) == 2
    step, weights, state = newest(tmp_path / "two")
    assert step == updates * batch and state["learner"]["version"] == updates
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-6)
    for a, b in zip(metrics(tmp_path / "local"), metrics(tmp_path / "two"), strict=True):
        assert a["step"] == b["step"] and a["episodes"] == b["episodes"]
        for name in ("total_loss", "grad_norm", "entropy", "policy_lag"):
            assert float(a[name]) == pytest.approx(float(b[name]), rel=1e-3, abs=1e-5), name


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


def test_a_loss_that_is_not_finite_ends_the_run_wherever_it_is(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ("--env", "training_envs:NanReward-v0", *TINY[:-2], *SMALL, "--num-learners", "2")
    with ExitStack() as stack:
        one = Watched(cluster, tmp_path, stack, *arguments, "--steps", "1000")
        with pytest.raises(RunError, match=r"update 19 is not finite: first in rewards; step 360 is saved"):
            one.run.run()
    step, weights, _ = newest(tmp_path)
    assert step == 360 and all(tensor.isfinite().all() for tensor in weights.values())


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


def test_a_silent_actor_is_named(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--env", "training_envs:Stalls-v0", *TINY[:-2], *SMALL, "--steps", "100k")
    with watched(cluster, tmp_path, *arguments) as one:
        one.waits_for(lambda: one.run.steps == 18 * UNROLL)
        monkeypatch.setattr("deltabeast.launch.processes.supervision.SILENCE", 0.4)
        one.waits_for(lambda: "has handed over nothing for" in one.said())
        one.waits_for(lambda: "no update for" in one.said())
    assert "actors: 1 acting, actor 0 (node" in one.said()
    assert newest(tmp_path)[0] == 18 * UNROLL, "it could be stopped all the same"


STRANGER = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
    print("ran", ray.get(ray.remote(num_cpus=0)(lambda: 6 * 7).remote(), timeout=60))
except (ConnectionError, ray.exceptions.RayError) as error:
    print("refused", type(error).__name__)
"""


class Probe:
    """What a process of the cluster sees."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


def of_a_process(one: ray_cluster.Cluster) -> dict[str, str]:
    """The environment of a process that the cluster starts."""
    probe = one.start(Probe, cpus=0.1, gpus=0.0)
    return one.ask([probe], "environment", patience=lambda waited: None)[0]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_cluster_of_this_machine_alone_is_closed_to_others(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says: it listens on 127.0.0.1, and who has not its token can run nothing.

    And the next cluster in the same process, one that was there before or another, is none the wiser.
    """
    junk = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "ab" * 32, "RAY_AUTH_TOKEN_PATH": "/nowhere",
            "RAY_ADDRESS": "local", "HOME": str(tmp_path)}  # fmt: skip
    for name, value in junk.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAY_ENABLE_K8S_TOKEN_AUTH", "1")
    others = descendants(os.getpid())
    with ray_cluster.Cluster(None) as one:
        assert os.environ.items() >= junk.items()
        token = of_a_process(one)["RAY_AUTH_TOKEN"]
        assert len(token) == 64 and token != junk["RAY_AUTH_TOKEN"]
        processes = descendants(os.getpid()) - others
        assert len(processes) >= 4 and listening(processes | {os.getpid()}) == {"127.0.0.1"}
        address = ray.get_runtime_context().gcs_address
        strangers = [stranger(address, tmp_path, given) for given in (None, token)]
        assert [one.communicate(timeout=60)[0].split()[0] for one in strangers] == ["refused", "ran"]
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        assert session.parents[1].stat().st_mode & 0o777 == 0o700
        logs = [path.read_text(errors="replace") for path in session.rglob("*") if path.is_file()]
        commands = [command(pid) for pid in descendants(os.getpid())]
        assert logs and not any(token in text for text in (*logs, *commands))
    assert os.environ.items() >= junk.items() and not session.exists() and not (tmp_path / ".ray").exists()

    assert ray._raylet.get_authentication_mode() == ray._raylet.AuthenticationMode.DISABLED
    monkeypatch.delenv("RAY_ENABLE_K8S_TOKEN_AUTH")  # no Kubernetes could tell who uses the other
    with ray_cluster.Cluster(cluster.address) as there:
        assert of_a_process(there).get("RAY_AUTH_TOKEN") != token
    with ray_cluster.Cluster(None) as another:
        assert of_a_process(another)["RAY_AUTH_TOKEN"] not in (token, junk["RAY_AUTH_TOKEN"])
    assert os.environ.items() >= junk.items()


def stranger(address: str, home: Path, token: str | None) -> subprocess.Popen[str]:
    """Another user's process: it has the address, and this token or none."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "RAY_NUM_REDIS_GET_RETRIES": "2"}
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # or Ray would look elsewhere than at 127.0.0.1
    if token is not None:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    given = [sys.executable, "-c", STRANGER, address]
    return subprocess.Popen(given, env=environment, stdout=subprocess.PIPE, text=True)


def test_processes_use_the_cores_that_they_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--engine", "ray", "--actor-cpus", "3", "--learner-cpus", "2"]
    config = parse(["train", *CARTPOLE[:-2], *given])
    emulators: list[int | None] = []

    def env_takes(config: TrainConfig, threads: int | None) -> VectorEnv:
        emulators.append(threads)
        return make_env(config, threads)

    monkeypatch.setattr(ray_cluster, "where", lambda: None)
    monkeypatch.setattr("deltabeast.launch.training.ray.actor_process.make_env", env_takes)
    spec, before = agent_spec(config, make_env(config, 1)), torch.get_num_threads()
    try:
        ActorProcess(config, spec, 1, 4, None).begin()
        assert torch.get_num_threads() == 3 and emulators == [3]
        LearnerProcess(config, spec, "cpu", 100, 0, 1).begin()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


REFUSED = {
    "no cluster": (("--ray-address", "127.0.0.1:1"), "127.0.0.1:1: no Ray cluster answers there .*refused"),
    "no room": (("--num-actors", "99"), "99 x 1 for actors: there are [34], at most 1 on one node; give a"),
    "no GPU": (("--device", "cuda"), "1 x 1 GPU for learners and 1 x 0 for actors: there are 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_there_is_told_in_one_line(
    cluster: Cluster, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltabeast.launch.training.ray.engine._JOINING", 0.6)
    given, message = REFUSED[case]
    arguments = ["train", *CARTPOLE[:-2], "--engine", "ray", "--ray-address", cluster.address, *given]
    began = time.monotonic()
    with pytest.raises(UsageError, match=message) as raised:
        train(parse([*arguments, "--run-dir", str(tmp_path / "run")]))
    assert "\n" not in str(raised.value) and time.monotonic() - began < 20
    assert not (tmp_path / "run").exists()


def test_ray_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("deltabeast.launch.training.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"not installed: pip install 'deltabeast\[ray\]'"):
        train(parse(["train", *CARTPOLE[:-2], "--engine", "ray", "--run-dir", str(tmp_path / "run")]))
    assert not (tmp_path / "run").exists()


def test_ray_without_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("ray._raylet.AuthenticationTokenLoader")
    with pytest.raises(UsageError, match=r"knows no tokens, .* it takes 2\.52 or later: pip install"):
        train(parse(["train", *CARTPOLE[:-2], "--engine", "ray", "--run-dir", str(tmp_path / "run")]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variable", "value", "address", "message"),
    [
        ("RAY_AUTH_MODE", "token", "127.0.0.1:PORT", "no Ray cluster answers .*no authentication token"),
        ("RAY_TMPDIR", "/nowhere", "local", "no folder for Ray in /nowhere: No such file.*; set RAY_TMPDIR"),
    ],
)
def test_an_environment_that_does_not_fit_is_told_in_one_line(
    variable: str, value: str, address: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address.replace("PORT", str(server.getsockname()[1]))
        with pytest.raises(UsageError, match=message) as raised:
            ray_cluster.Cluster(address)
    assert "\n" not in str(raised.value)


PONG = ("--game", "pong", "--core", "lstm", "--stem", "nature", "--precision", "fp32", "--num-envs", "2",
        "--batch-size", "2", "--unroll-length", "10", "--engine", "ray", "--device", "cpu",
        "--log-seconds", "0.2")  # fmt: skip
COMMAND = [sys.executable, "-c", "from deltabeast.launch.cli import main; main()", "train"]


@contextmanager
def pong(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Training in a process group of its own."""
    given = [*COMMAND, *PONG, "--steps", "1M", "--run-dir", str(run_dir)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(given, **pipes, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_the_end_of_ray_itself_is_told(tmp_path: Path) -> None:
    """As after `ray stop`: left alone, Ray's library would end the process without a word."""
    with pong(tmp_path / "run") as process:
        end = time.monotonic() + 70
        while not last_step(tmp_path / "run"):
            assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
            time.sleep(0.05)
        others = family(process.pid)
        (raylet,) = (p for p in others if Path(f"/proc/{p}/comm").read_text().strip() == "raylet")
        os.kill(raylet, signal.SIGKILL)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 1 and "Traceback" not in said, said
    assert "Ray was stopped or killed on this machine; start it, and the same command goes on" in said
    end = time.monotonic() + 30
    while alive(others):
        assert time.monotonic() < end, alive(others)
        time.sleep(0.1)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_game_on_a_cluster_of_its_own(tmp_path: Path) -> None:
    """Asked to stop as from a terminal, killed, run again: it goes on, and leaves no process behind."""
    run_dir = tmp_path / "run"
    for number in (signal.SIGINT, signal.SIGKILL):
        goal = last_step(run_dir) + 100
        with pong(run_dir) as process:
            end = time.monotonic() + 70
            while last_step(run_dir) < goal:
                assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
                time.sleep(0.05)
            others = family(process.pid)
            assert len(others) >= 4
            if number == signal.SIGINT:
                os.killpg(process.pid, number)  # a terminal tells all of them
            else:
                process.kill()
            said = process.communicate(timeout=60)[0]
        assert process.returncode == -number, said
        end = time.monotonic() + 30
        while alive(others):
            assert time.monotonic() < end, alive(others)
            time.sleep(0.1)
        if number == signal.SIGINT:
            assert "stopped at" in said and newest(run_dir)[0] == last_step(run_dir) >= goal
            words = {line.split()[0] for line in said.strip().splitlines()}
            assert words <= {"step", "stopping", "stopped"}, said
        else:
            assert f"resuming {run_dir} at step" in said
    last = rows(run_dir)[-1]
    assert 0 < float(last["bytes_per_step"]) < 7500 and last["unrolls_lost"] == last["unrolls_doubled"] == "0"
