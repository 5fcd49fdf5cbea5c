"""Processes that share a run: the same update, and nothing hangs, is lost or left behind when one ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_in_process import on_update, run
from training_process import CARTPOLE, TINY, Training, last_step, newest, rows

from deltabeast.agents import Agent, Episodes, PartialUpdate
from deltabeast.agents.accelerate import ALL
from deltabeast.agents.normaliser import make_normaliser, merge, moments
from deltabeast.launch.errors import RunError, UsageError
from deltabeast.launch.parsing import parse
from deltabeast.launch.processes.machine import own_cpus
from deltabeast.launch.training.flat_parameters import gradients_of
from deltabeast.launch.training.local.contributions import Contributions
from deltabeast.launch.training.local.shared import Room, Shared, new_file
from deltabeast.launch.training.local.workers import Worker, Workers
from deltabeast.launch.training.plan import agent_spec, make_env, per_process, resolve, worker_count
from deltabeast.launch.training.ray import collective

CPU = torch.device("cpu")
MATCH = ("--env", "training_envs:Match-v0", *TINY)
TWO = ("--num-workers", "2")


def children(pid: int) -> list[int]:
    """The workers: other children are multiprocessing's own."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.usefixtures("quick_children")
def test_each_takes_its_share_and_the_run_goes_on(tmp_path: Path) -> None:
    """Every episode of this environment takes 10 steps."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    run(tmp_path, *MATCH, *TWO, "--steps", "400", "--log-seconds", "0")
    logged = rows(tmp_path)
    assert [int(row["step"]) for row in logged] == list(range(20, 401, 20))  # both shares count
    assert int(float(logged[-1]["episodes"])) == 40
    assert all(float(row["policy_lag"]) == 0 and float(row["log_rho_abs_max"]) < 1e-3 for row in logged)
    run(tmp_path, *MATCH, *TWO, "--steps", "500")
    assert newest(tmp_path)[2]["actors"][0]["unrolls"] == 25
    run(tmp_path, *MATCH, "--steps", "600")  # and alone
    assert newest(tmp_path)[2]["actors"][0]["unrolls"] == 30
    assert before is None or os.sched_getaffinity(0) == before, "the cores are given back"


def shared_rooms(agent: nn.Module, count: int) -> Sequence[Room]:
    file = new_file(agent, count)
    shared = Shared(file, agent)
    os.close(file)
    shared.publish()
    return shared.rooms(count)


def test_the_gradients_of_a_worker_are_added(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves in shared memory is its batch's gradient; each adds a part of it to the main one's."""
    config = parse(["train", *MATCH])
    resolve(config)
    agent = Agent(agent_spec(config, make_env(config, 1)))
    rooms = shared_rooms(agent, 2)
    rooms[0].gradients.fill_(torch.nan)
    worker = Worker(config, 2, 1, 0, agent, Contributions(rooms, agent, 1), ALL, threads=1)
    update = worker.update(version=7, reward_divisor=1.0)
    left = rooms[1].gradients
    assert rooms[0].gradients.isnan().all()
    expected = torch.cat([p.grad.flatten() for p in agent.parameters()])
    assert torch.equal(left[: len(expected)], expected) and expected.abs().sum() > 0
    assert left[len(expected) :].eq(1).all(), "all parameters have one"
    workers = Workers(config, count=1, threads=1, cpus=None)
    workers._contributions = Contributions(rooms, agent, 0)
    monkeypatch.setattr(workers, "start", lambda function, counted: function(worker, counted))
    own = [torch.randn_like(p) for p in agent.parameters()]
    for parameter, gradient in zip(agent.parameters(), own, strict=True):
        parameter.grad = gradient.clone()
    workers.add_up([workers.leave(update), update])
    added = torch.cat([p.grad.flatten() for p in agent.parameters()])
    torch.testing.assert_close(added, expected + torch.cat([g.flatten() for g in own]))


def contributions(agents: Sequence[Any]) -> list[Contributions]:
    """Those of as many processes."""
    rooms = shared_rooms(agents[0], len(agents))
    return [Contributions(rooms, agent, index) for index, agent in enumerate(agents)]


def added_up(processes: Sequence[Contributions], updates: Sequence[PartialUpdate]) -> PartialUpdate:
    """The first one's update, as `Workers.add_up` makes it, whoever is first."""
    left = [process.leave(own) for process, own in zip(processes, updates, strict=True)]
    assert all(each.moments is None for each in left)
    for index in torch.randperm(len(processes)).tolist():
        processes[index].add_part(left[0].num_steps > 0)
    return processes[0].take(left[0])


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_parameter_that_only_one_process_uses_has_its_gradient_in_all(
    engine: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero is a gradient; what no process uses has none, as where one process has the whole batch."""

    def make(used: dict[str, float]) -> torch.nn.ParameterDict:
        shapes = {"both": (2, 3), "main": (4,), "worker": (3, 1), "zero": (2,), "neither": (5,)}
        made = torch.nn.ParameterDict({name: torch.zeros(shape) for name, shape in shapes.items()})
        for name, value in used.items():
            made[name].grad = torch.full(shapes[name], value)
        return made

    main, worker = make({"both": 1.0, "main": 2.0}), make({"both": 4.0, "worker": 8.0, "zero": 0.0})
    left = torch.cat([part.flatten() for part in gradients_of(list(worker.parameters()))])
    if engine == "local":
        processes = contributions([main, worker])
        own = added_up(processes, 2 * [PartialUpdate({}, 1, 0, Episodes())])
        assert own.moments is None
        left = processes[0]._rooms[1].gradients
    else:
        monkeypatch.setattr(collective.dist, "all_reduce", lambda tensor: tensor.add_(left))
        collective.Collective(0, 2, CPU)._add_gradients(main)  # type: ignore[arg-type]
    sums = {name: p.grad if p.grad is None else p.grad.unique().tolist() for name, p in main.items()}
    assert sums == {"both": [5.0], "main": [2.0], "worker": [8.0], "zero": [0.0], "neither": None}
    assert all(p.grad is None or p.grad.shape == p.shape for p in main.values())
    left.fill_(9.0)
    assert main["worker"].grad.eq(8).all(), "it is no view of what the worker writes next"


@pytest.mark.parametrize(("count", "entries"), [(2, 5), (3, 1), (5, 3), (16, 1001)])
def test_parts_make_the_sum_of_all(count: int, entries: int, seed: int) -> None:
    """In any order of the processes; gradients bit for bit as one adds one after another."""

    def make() -> nn.Module:
        agent = nn.Linear(entries, 3)
        agent.normaliser = make_normaliser((entries,), range(entries))
        for parameter in agent.parameters():
            parameter.grad = torch.randn_like(parameter)
        return agent

    agents = [make() for _ in range(count)]
    processes = contributions(agents)
    several = [moments(torch.randn(1 + each % 4, entries)) for each in range(count)]
    sums = [p.grad.clone() for p in agents[0].parameters() if p.grad is not None]
    for agent in agents[1:]:
        for total, parameter in zip(sums, agent.parameters(), strict=True):
            total += parameter.grad
    updates = [PartialUpdate({}, 1, 0, Episodes(), moments=each) for each in several]
    own = added_up(processes, updates)
    found = [parameter.grad for parameter in agents[0].parameters()]
    assert all(torch.equal(each, total) for each, total in zip(found, sums, strict=True))  # type: ignore[arg-type]
    assert torch.equal(torch.as_tensor(own.moments), merge(*several))
    before = processes[0]._rooms[0].moments.clone()
    again = added_up(processes, [replace(each, num_steps=0, moments=None) for each in updates])
    assert again.moments is None and torch.equal(processes[0]._rooms[0].moments, before), (
        "of those that count"
    )


@pytest.mark.usefixtures("quick_children")
def test_workers_share_the_statistics_of_what_all_of_them_saw(tmp_path: Path) -> None:
    """One update: 4 environments, 5 steps each; the games do not depend on the number of workers."""
    for workers in ("1", "2"):
        run(tmp_path / workers, *CARTPOLE, "--num-workers", workers, "--steps", "20")
    one, two = (newest(tmp_path / workers)[1]["normaliser.statistics"] for workers in ("1", "2"))
    assert (one[0] == 20).all() and (one[2, 1:] > 0).all()
    torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-12)
    one, two = (newest(tmp_path / workers)[2]["learner"]["returns"] for workers in ("1", "2"))
    assert one[0] == 20 and one[2] > 0
    torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("quick_children")
def test_workers_normalise_pixels_as_one_process_does(tmp_path: Path) -> None:
    """By statistics in shared memory, which the main process changes: the second update reads them."""
    pong = ("--game", "pong", *TINY, "--stem", "shallow", "--normalise-observations", "on")
    for workers in ("1", "2"):
        run(tmp_path / workers, *pong, "--num-workers", workers, "--steps", "60", "--precision", "fp32")
    one, two = (newest(tmp_path / workers)[1] for workers in ("1", "2"))
    assert one["normaliser.statistics"][0].eq(3 * 4).all(), "the first steps of three unrolls"
    assert one["normaliser.statistics"][2].gt(0).any()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-5, msg=name)


REUSE = ("--passes", "3", "--optimizer", "adam", "--clip-ratio", "0.2", "--vtrace-lambda", "0.9")


@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize("reuse", [(), REUSE], ids=["learned from once", "three times"])
def test_workers_make_the_update_that_one_process_makes(reuse: tuple[str, ...], tmp_path: Path) -> None:
    """With advantages and values normalised over all of them, and rewards divided alike, in the second update
    too."""
    for workers in ("1", "2"):
        given = ("--num-workers", workers, "--steps", "40", "--precision", "fp32", *reuse)
        normalised = ("--normalise-rewards", "--normalise-advantages", "--normalise-values")
        run(tmp_path / workers, *CARTPOLE, *given, *normalised)
    (_, one, state), (_, two, _) = (newest(tmp_path / workers) for workers in ("1", "2"))
    assert state["learner"]["version"] == (6 if reuse else 2) and state["learner"]["steps"] == 40
    # A first step of Adam's has the size of the learning rate, whatever the gradient's.
    near = {"rtol": 1e-3, "atol": 2e-4} if reuse else {"rtol": 1e-4, "atol": 1e-6}
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, **near, msg=name)


@pytest.mark.usefixtures("quick_children")
def test_workers_learn_from_minibatches_of_their_shares(tmp_path: Path) -> None:
    """Two passes of two minibatches, one environment of each process in each: four steps of the optimizer."""
    given = (*TWO, "--steps", "60", "--log-seconds", "0", "--passes", "2", "--minibatch-size", "2")
    run(tmp_path, *MATCH, *given)
    logged = rows(tmp_path)
    assert [int(row["step"]) for row in logged] == [20, 40, 60], "as the last pass ends"
    assert all(float(row["policy_lag"]) == 1.5 for row in logged), "the mean of 0, 1, 2 and 3"
    assert all(float(row["log_rho_abs_max"]) > 1e-3 for row in logged)
    assert newest(tmp_path)[2]["learner"]["version"] == 12


@pytest.mark.parametrize("when", ["between updates", "as gradients are added up"])
@pytest.mark.usefixtures("quick_children")
def test_a_worker_that_dies_is_named_and_loses_nothing(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    adding = Workers.start

    def kill(_: object) -> None:
        (worker,) = (one for one in multiprocessing.active_children() if one.name == "worker 1")
        killed.append(worker.pid or 0)
        os.kill(worker.pid or 0, signal.SIGKILL)

    def start(workers: Workers, function: Any, *arguments: Any) -> None:
        orders.append(function)
        if orders.count(Worker.add_part) == 11 and not killed:
            kill(workers)
        adding(workers, function, *arguments)

    orders: list[Any] = []
    if when == "between updates":
        on_update(monkeypatch, lambda learner: kill(learner) if learner.version == 10 else None)
    else:
        monkeypatch.setattr(Workers, "start", start)
    with pytest.raises(RunError, match=r"killed by signal 9, .*; step \d+ is saved in [^ ]*$") as raised:
        run(tmp_path, *CARTPOLE, *TWO, "--steps", "1M", "--log-seconds", "0")
    assert str(raised.value).startswith(f"worker 1 (process {killed[0]}) died: ")
    assert newest(tmp_path)[0] == last_step(tmp_path) >= 200


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_no_worker_outlives_the_run(number: signal.Signals, tmp_path: Path) -> None:
    """Spawned as everywhere, by a process that ends of a signal."""
    arguments = (*CARTPOLE, *TWO, "--steps", "1M", "--log-seconds", "0")
    training = Training(tmp_path / "run", *arguments, daemon=False)
    try:
        assert training.wait_for(lambda: last_step(tmp_path / "run") >= 100), training.output()
        pid = training.process.pid
        workers = children(pid)
        assert len(workers) == 1
        for one in (pid, *workers) if number is not signal.SIGKILL else (pid,):
            os.kill(one, number)  # a terminal, a scheduler signals all of them
        assert training.wait(30) == -number
    finally:
        training.process.kill()
    end = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < end
        time.sleep(0.02)
    if number is not signal.SIGKILL:
        assert newest(tmp_path / "run")[0] == last_step(tmp_path / "run")


@pytest.mark.usefixtures("quick_children")
def test_a_worker_that_fails_tells_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--env", "training_envs:FailsBeside-v0", *TINY, *TWO, "--steps", "10k")
    with pytest.raises(
        RunError, match=r"^training_envs:FailsBeside-v0: step failed: RuntimeError: the joystick broke; step"
    ):
        run(tmp_path, *arguments)
    assert "in step\n" in capsys.readouterr().out, "its traceback"


@pytest.mark.usefixtures("quick_children")
def test_what_is_not_finite_in_a_worker_is_named_with_its_update(tmp_path: Path) -> None:
    """After a resume too, when the worker itself has seen only the last 19 of all updates."""
    arguments = ("--env", "training_envs:OverflowsBeside-v0", *TINY, *TWO)
    run(tmp_path, *arguments, "--steps", "100")
    with pytest.raises(
        RunError, match="of update 24 is not finite: first in behaviour logits; step 460 is saved"
    ):
        run(tmp_path, *arguments, "--steps", "1000")


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ((), 4),
        (("--num-envs", "32", "--batch-size", "6"), 2),
        (("--num-envs", "3", "--batch-size", "3"), 3),
        (("--num-envs", "7", "--batch-size", "7"), 1),
        (("--num-workers", "2"), 2),
        (("--deterministic",), 1),
        (("--overlap", "on"), 1),
        (("--num-actors", "2"), 1),
        (("--replay-ratio", "0.125"), 4),
        (("--replay-ratio", "0.0625"), 2),
        (("--replay-ratio", "0.09375"), 1),
    ],
)
def test_their_number_follows_from_the_cores(given: tuple[str, ...], count: int) -> None:
    config = parse(["train", "--game", "pong", *given])
    assert worker_count(config, CPU, cpus=5) == count
    part = per_process(config, count)
    assert (part.num_envs * count, part.batch_size * count) == (config.num_envs, config.batch_size)
    if "--num-workers" not in given:
        assert worker_count(config, torch.device("cuda"), cpus=5) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--num-workers", "3"), "must divide --num-envs 4 and --batch-size 4"),
        (("--num-workers", "2", "--minibatch-size", "1"), "must divide --num-envs 4 and --minibatch-size 1"),
        (("--num-workers", "2", "--replay-ratio", "0.25"), "must divide the 1 trajectories that"),
        (("--num-workers", "0"), "--num-workers 0; it must be from 1 to 65536"),
        (("--num-workers", "2", "--deterministic"), "--deterministic leaves it at 1; omit"),
        (("--num-workers", "2", "--overlap", "on"), "--overlap on leaves it at 1; omit"),
    ],
)
def test_a_wrong_number_is_refused(given: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "run", *CARTPOLE, *given)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_cores_are_taken_only_where_there_is_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert own_cpus(2) == [3, 5]
    assert own_cpus(1) is None and own_cpus(3) is None
    monkeypatch.setattr(
        "deltabeast.launch.processes.machine.available_cores", lambda: 1
    )  # a container's quota
    assert own_cpus(2) is None
