"""Environments stepped in processes, as beside a GPU: the run, and its failures, are those of one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_envs
from training_in_process import EXACT, FEEDFORWARD, Killed, kill_at, listen, on_update, run
from training_process import CARTPOLE, assert_same_run, last_step, newest, rows

from deltabeast.agents import Learner
from deltabeast.launch.cli import parse
from deltabeast.launch.errors import RunError, StoppedBySignal
from deltabeast.launch.processes import supervision
from deltabeast.launch.training import plan
from deltabeast.launch.training.local import engine as local_engine
from deltabeast.launch.training.threads import uses

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind", "quick_children")
MATCH = ("--env", "training_envs:Match-v0", *FEEDFORWARD, "--overlap", "on")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Any:
    yield
    assert not [child.name for child in multiprocessing.active_children() if "environments" in child.name]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes for each actor, whatever the device and the cores."""
    monkeypatch.setattr(local_engine, "env_processes", lambda *_: 2)


@pytest.mark.parametrize(
    ("given", "device", "num_envs", "cores", "wanted"),
    [
        ("--game pong", "cuda", 128, 16, 16),
        ("--game pong", "cuda", 128, 3, 0),
        ("--game pong", "cpu", 128, 16, 0),
        ("--game pong", "cuda", 16, 16, 16),
        ("--game pong", "cuda", 20, 16, 10),  # two games each take as long in 16
        ("--game pong", "cuda", 5, 4, 3),
        ("--game pong", "cuda", 1, 16, 0),
        ("--env training_envs:Match-v0", "cuda", 128, 16, 16),
        ("--env training_envs:Match-v0", "cuda", 16, 16, 4),
        ("--env training_envs:Match-v0", "cuda", 7, 16, 0),
        ("--env CartPole-v1", "cuda", 128, 16, 0),  # it has a vector form of its own
    ],
)
def test_a_gpu_has_a_process_on_each_core(
    given: str, device: str, num_envs: int, cores: int, wanted: int
) -> None:
    config = parse(["train", *given.split()])
    assert plan.env_processes(config, torch.device(device), num_envs, cores) == wanted


def test_the_run_says_so() -> None:
    assert uses(1, 16, 32) == "1 process of 16 threads, environments in 32 more"
    assert uses(1, 1) == "1 process of 1 thread"


@pytest.mark.usefixtures("two")
def test_actors_act_in_processes_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every episode of this environment takes 10 steps."""
    playing: set[str] = set()
    on_update(monkeypatch, lambda _: playing.update(c.name for c in multiprocessing.active_children()))
    run(tmp_path, *MATCH, "--num-actors", "2", "--steps", "400", "--log-seconds", "0")
    assert playing == {"environments 0 to 1 of each group", "environments 2 to 3 of each group"}
    logged = rows(tmp_path)
    assert [int(row["step"]) for row in logged] == list(range(20, 401, 20))
    assert abs(int(float(logged[-1]["episodes"])) - 40) <= 4
    run(tmp_path, *MATCH, "--num-actors", "2", "--steps", "500")
    assert newest(tmp_path)[0] == 500


def test_a_deterministic_run_is_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, also where it was killed and goes on in more of them."""
    arguments = (*CARTPOLE, *EXACT, "--steps", "400", "--milestone-steps", "200")
    run(tmp_path / "one", *arguments)
    monkeypatch.setattr(local_engine, "env_processes", lambda *_: 2)
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 12)
        with pytest.raises(Killed):
            run(tmp_path / "other", *arguments)
    monkeypatch.setattr(local_engine, "env_processes", lambda *_: 3)
    run(tmp_path / "other", *arguments)
    assert_same_run(tmp_path / "one", tmp_path / "other")


@pytest.mark.usefixtures("two")
def test_an_environment_that_raises_ends_the_run_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--env", "training_envs:Raises-v0", *FEEDFORWARD, "--overlap", "on", "--steps", "10k")
    with pytest.raises(
        RunError, match=r"^training_envs:Raises-v0: step failed: KeyError: 'the emulator broke'; step 360 is"
    ):
        run(tmp_path, *arguments)
    out = capsys.readouterr().out
    assert 'raise KeyError("the emulator broke")' in out and "deltabeast/launch" not in out
    assert newest(tmp_path)[0] == 360


@pytest.mark.usefixtures("two")
def test_a_process_that_dies_is_named_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed: list[int] = []

    def kill(learner: Learner) -> None:
        if learner.version == 10:
            (child,) = (c for c in multiprocessing.active_children() if "2 to 3" in c.name)
            assert child.pid is not None
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    on_update(monkeypatch, kill)
    with pytest.raises(RunError, match=r"killed by signal 9, .*; step \d+ is saved in [^ ]*$") as raised:
        run(tmp_path, *MATCH, "--steps", "1M", "--log-seconds", "0")
    assert str(raised.value).startswith(f"environments 2 to 3 (process {killed[0]}) died: ")
    assert "Traceback" not in capsys.readouterr().out
    assert newest(tmp_path)[0] == last_step(tmp_path) >= 200


@pytest.mark.usefixtures("two")
def test_a_process_that_hangs_is_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung: list[int] = []

    def hang(learner: Learner) -> None:
        if learner.version == 10:
            (child,) = (c for c in multiprocessing.active_children() if "2 to 3" in c.name)
            assert child.pid is not None
            hung.append(child.pid)
            os.kill(child.pid, signal.SIGSTOP)

    monkeypatch.setattr(supervision, "SILENCE", 0.5)
    said = listen(monkeypatch, "no update for", lambda: os.kill(hung[0], signal.SIGCONT))
    on_update(monkeypatch, hang)
    run(tmp_path, *MATCH, "--num-actors", "2", "--steps", "800")
    silent = [message for message in said if message.startswith("no update for")]
    assert f"; steps of environments 2 to 3 of each group (process {hung[0]}) under way" in silent[0]
    assert newest(tmp_path)[0] == 800


def test_each_process_has_a_core_and_observations_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(plan, "own_cpus", lambda count: [cores[0], cores[-1]] if count == 2 else None)
    with ExitStack() as stack:
        envs = plan.make_process_envs(replace(parse(["train", *MATCH]), num_envs=4), 2, 2, stack)
        pids = [child._process.pid for child in envs[1]._children]
        first, _ = envs[1].reset(seed=1)
        assert [os.sched_getaffinity(pid or 0) for pid in pids] == [{cores[0]}, {cores[-1]}]
        assert [env.num_envs for env in envs] == [4, 4]
        assert np.shares_memory(first, envs[1].step(np.zeros(4, int))[0])


@pytest.mark.usefixtures("two")
def test_one_that_dies_as_it_starts_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_env_maker", lambda *_: training_envs.leaves)
    with pytest.raises(RunError, match=r"^environments 0 to 1 \(process \d+\) died: exit code 3$"):
        run(tmp_path, *MATCH, "--steps", "100")


@pytest.mark.usefixtures("two")
def test_a_signal_to_all_of_them_saves_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(learner: Learner) -> None:
        if learner.version == 10:
            for child in multiprocessing.active_children():
                os.kill(child.pid or 0, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    on_update(monkeypatch, stop)
    with pytest.raises(StoppedBySignal):
        run(tmp_path, *MATCH, "--steps", "1M", "--log-seconds", "0")
    assert newest(tmp_path)[0] == last_step(tmp_path) >= 200
