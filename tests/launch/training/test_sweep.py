"""Sweeps: which runs they are, and that they queue, survive, stop, go on, and are not made twice."""

from __future__ import annotations

import io
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import training_envs
from training_process import Training, last_step, newest

pytest.importorskip("ray")

from ray.cluster_utils import Cluster
from rich.console import Console

from deltabeast.launch.errors import UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.training import sweep as sweeps
from deltabeast.launch.training.command import train
from deltabeast.launch.training.local import engine as local_engine
from deltabeast.launch.training.local.workers import Workers
from deltabeast.launch.training.plan import check, make_env
from deltabeast.launch.training.sweep import is_finished, needs, runs_of, sweep

STEPS = 600
"""Agent steps of each run of the sweep; every tenth waits for a fiftieth of a second."""
SMALL = ("--num-envs", "2", "--batch-size", "2", "--unroll-length", "5", "--core", "lstm", "--steps", "100")
pytestmark = pytest.mark.timeout(400)


def test_games_cores_and_seeds_are_multiplied() -> None:
    config = parse(
        ["train", "--game", "paper20", "--cores", "rdn", "lstm", "--seeds", "5", "--engine", "ray"]
    )
    runs = runs_of(config)
    assert len({run.run_dir for run in runs}) == len(runs) == 20 * 2 * 5
    assert {run.game for run in runs} >= {"gopher", "zaxxon"} and {run.seed for run in runs} == {
        1,
        2,
        3,
        4,
        5,
    }
    assert runs[0].run_dir == Path("runs/alien/rdn/seed-1").resolve()
    assert [run.seed for run in runs[:40]] == [1] * 40, "one seed of everything first"
    assert all(run.engine == "local" and not run.cores and run.seeds is None for run in runs)
    given = (
        "--game",
        "kung-fu master",
        "--core",
        "lstm",
        "--seeds",
        "2",
        "--engine",
        "ray",
        "--run-dir",
        "x",
    )
    assert [run.run_dir for run in runs_of(parse(["train", *given]))] == [
        Path(f"x/kung_fu_master/lstm/seed-{n}").resolve() for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--game", "paper20", "--cores", "rdn", "lsmt"), "lstm"),
        (("--game", "gofer", "--seeds", "2"), "gopher"),
        (("--game", "pong", "--seeds", "0"), "--seeds 0; it must be at least 1"),
        (("--game", "pong", "--seeds", "2", "--batch-size", "0"), "--batch-size 0; it must be from 1"),
        (("--game", "pong", "--seeds", "2", "--num-learners", "2"), "is whole on one node"),
    ],
)
def test_a_wrong_sweep_starts_nothing(given: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        train(parse(["train", *given, "--engine", "ray", "--run-dir", str(tmp_path / "runs")]))
    assert not (tmp_path / "runs").exists()


def test_a_sweep_needs_the_cluster() -> None:
    with pytest.raises(UsageError, match="make a sweep, which needs --engine ray"):
        train(parse(["train", "--game", "pong", "--seeds", "2"]))


def test_what_a_run_reserves() -> None:
    none, one = {"CPU": 8.0, "GPU": 0.0}, {"CPU": 8.0, "GPU": 1.0}
    run = parse(["train", "--game", "pong", "--num-actors", "3"])
    assert needs(run, one) == (4.0, 1.0) and needs(run, none) == (1.0, 0.0)
    assert needs(parse(["train", "--game", "pong", "--num-workers", "4"]), none) == (4.0, 0.0)
    assert needs(parse(["train", "--game", "pong", "--device", "cpu"]), one) == (1.0, 0.0)


class Here:
    """Stands in for a cluster: what it starts is an object of this process."""

    def __init__(self, gpus: float) -> None:
        self.total = lambda: {"CPU": 64.0, "GPU": gpus}
        self.reserved: list[tuple[float, float]] = []

    def start(self, kind: Callable[..., Any], *arguments: Any, cpus: float, gpus: float, **_: Any) -> Any:
        self.reserved.append((cpus, gpus))
        return kind(*arguments)

    def call(self, *_: Any, **__: Any) -> None:
        pass


RESERVED = {
    "a core": (("--num-workers", "1"), 0.0, 1, 1, [1]),
    "one for each worker": (("--num-workers", "2"), 0.0, 2, 1, [1, 1]),
    "beside a GPU": (("--overlap", "on", "--learner-cpus", "2", "--actor-cpus", "2"), 1.0, 4, 4, [4]),
    "beside a GPU, for two actors": (("--overlap", "on", "--num-actors", "2"), 1.0, 3, 3, [1, 1]),
}
"""Options, GPUs of the cluster, cores; threads of torch, and of the emulators of each actor."""


@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize("case", RESERVED)
def test_a_run_takes_the_cores_that_it_reserved(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with many more, which may have other runs."""
    given, gpus, cores, threads, emulators = RESERVED[case]
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)), raising=False)
    for name in ("training.local.engine", "processes.machine"):
        monkeypatch.setattr(f"deltabeast.launch.{name}.available_cores", lambda: 64)
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: pytest.fail("it takes a core of its own"))
    used: dict[str, list[int]] = {"torch": [], "emulators": []}
    set_threads = torch.set_num_threads

    def workers_take(share: Any, count: int, threads: int, *more: Any) -> Workers:
        used["emulators"] += [threads] * (count - 1)
        return Workers(share, count, threads, *more)

    def env_takes(config: Any, threads: int, columns: Any) -> Any:
        used["emulators"].append(threads)
        return make_env(config, threads, columns)

    monkeypatch.setattr(local_engine, "Workers", workers_take)
    monkeypatch.setattr(local_engine, "make_env", env_takes)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: (used["torch"].append(n), set_threads(n)))
    run = parse(["train", "--env", "CartPole-v1", *SMALL, *given, "--run-dir", str(tmp_path / "run")])
    (one,) = runs_of(run)
    here = Here(gpus)
    queue = sweeps.Sweep(here, run, [one], lambda text: None)  # type: ignore[arg-type]
    before = torch.get_num_threads()
    try:
        queue.start_due()
        queue.open[0].handle.train(one)
    finally:
        set_threads(before)
    assert here.reserved == [(cores, gpus)]
    first, *later = used["torch"]
    assert (
        first == int(cores) and later[0] == max(later) == threads and sorted(used["emulators"]) == emulators
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Room for two runs at a time."""
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(training_envs.__file__).parent), path])
    head = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    os.environ["PYTHONPATH"] = path
    yield made
    made.shutdown()


@pytest.mark.long
def test_a_sweep_stops_goes_on_and_outlives_a_run_s_death(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Four runs: one finished before, others stopped by a signal; then one is killed. At last all are done,
    and nothing is left to do."""
    root = tmp_path / "runs"
    given = ["train", "--env", "training_envs:Numbered-v0", "--cores", "lstm", "feedforward", "--seeds", "2"]
    given += ["--num-envs", "2", "--batch-size", "2", "--unroll-length", "5", "--device", "cpu"]
    given += ["--steps", str(STEPS), "--checkpoint-minutes", "0.01", "--log-seconds", "0.1"]
    given += ["--engine", "ray", "--ray-address", cluster.address, "--run-dir", str(root)]
    config = parse(given)
    runs = runs_of(config)
    before, *others = random.sample(runs, 4)
    train(before)
    assert is_finished(before) and not any(map(is_finished, others))

    process = Training(root, *given[1:-2])
    assert process.wait_for(lambda: any(last_step(run.run_dir) for run in others)), process.output()
    process.send(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM and "stopping: the runs save" in process.output()
    steps = [newest(run.run_dir)[0] for run in others if run.run_dir.exists()]
    assert any(0 < step < STEPS for step in steps), process.output()
    left = [run for run in others if not is_finished(run)]

    killed: list[int] = []
    status = sweeps.Sweep.start_due

    def kill_one(queue: sweeps.Sweep) -> None:
        status(queue)
        running = [job for job in queue.open.values() if job.location is not None]
        if running and not killed and last_step(running[0].run.run_dir):
            killed.append(running[0].location.pid)
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(sweeps.Sweep, "start_due", kill_one)
    text = io.StringIO()
    sweep(config, Console(file=text, width=200))
    said = text.getvalue()
    assert killed and f"process {killed[0]}: " in said and "it goes on in 1 s" in said, said
    assert all(map(is_finished, runs)) and said.count(f" finished: step {STEPS}, ") == len(left), said
    text = io.StringIO()
    sweep(config, Console(file=text))
    assert text.getvalue() == "4 runs, 4 of them finished before\n"
    assert not list(root.glob(".sweep-*"))


def test_what_a_run_of_a_sweep_was_given_trains_it_alone(tmp_path: Path) -> None:
    """`info` names its options, and what the sweep reserves is none of them."""
    more = ("--engine", "ray", "--seeds", "1", "--actor-cpus", "4", "--learner-cpus", "2")
    config = parse(["train", "--game", "pong", *more, "--run-dir", str(tmp_path)])
    assert needs(config, {"CPU": 8.0, "GPU": 1.0}) == (6.0, 1.0)
    (one,) = runs_of(config)
    check(one)
    assert (one.actor_cpus, one.learner_cpus) == (1.0, 1.0)
