"""Environments stepped in processes, as beside a GPU: the run, and its failures, are those of one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from deltabeast.launch.errors import RunError, StoppedBySignal
from deltabeast.launch.parsing import parse
from deltabeast.launch.processes import supervision
from deltabeast.launch.processes.env_processes import ProcessEnvs
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
    """Two processes, whatever the device and the cores."""
    monkeypatch.setattr(local_engine, "env_processes", lambda *_: (1, 2))


@pytest.mark.parametrize(
    ("given", "device", "num_envs", "groups", "cores", "wanted"),
    [
        ("--game pong", "cuda", 128, 2, 16, (1, 16)),
        ("--game pong", "cuda", 128, 2, 3, (0, 0)),
        ("--game pong", "cpu", 128, 2, 16, (0, 0)),
        ("--game pong", "cuda", 16, 1, 16, (1, 16)),
        ("--game pong", "cuda", 20, 2, 16, (1, 10)),  # two games each take as long in 16
        ("--game pong", "cuda", 8, 2, 16, (2, 8)),  # with one set half of the cores would have nothing to do
        ("--game pong", "cuda", 4, 8, 16, (4, 4)),
        ("--game pong", "cuda", 5, 2, 4, (1, 3)),
        ("--game pong", "cuda", 1, 2, 16, (0, 0)),
        ("--env training_envs:Match-v0", "cuda", 128, 2, 16, (1, 16)),
        ("--env training_envs:Match-v0", "cuda", 16, 1, 16, (1, 4)),
        ("--env training_envs:Match-v0", "cuda", 7, 2, 16, (0, 0)),
        ("--env CartPole-v1", "cuda", 128, 2, 16, (0, 0)),  # it has a vector form of its own
    ],
)
def test_a_gpu_has_a_process_on_each_core(
    given: str, device: str, num_envs: int, groups: int, cores: int, wanted: tuple[int, int]
) -> None:
    config = parse(["train", *given.split()])
    assert plan.env_processes(config, torch.device(device), num_envs, groups, cores) == wanted


@pytest.mark.parametrize(
    ("given", "device", "wanted"),
    [
        ("--env CartPole-v1", "cuda", True),
        ("--env CartPole-v1", "cpu", False),
        ("--env CartPole-v1 --compile off", "cuda", False),
        ("--env CartPole-v1 --deterministic", "cuda", False),
        ("--game pong", "cuda", False),  # its emulation takes longer
        ("--game pong --compile on", "cuda", True),
        ("--game pong --compile on", "cpu", True),
    ],
)
def test_what_waits_for_games_is_not_compiled(given: str, device: str, wanted: bool) -> None:
    assert plan.compiles(parse(["train", *given.split()]), torch.device(device)) == wanted


def test_the_run_says_so() -> None:
    assert uses(1, 16, 16) == "1 process of 16 threads, environments in 16 more"
    assert uses(1, 1) == "1 process of 1 thread"


@pytest.mark.usefixtures("two")
def test_actors_act_in_processes_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every episode of this environment takes 10 steps."""
    playing: set[str] = set()
    on_update(monkeypatch, lambda _: playing.update(c.name for c in multiprocessing.active_children()))
    run(tmp_path, *MATCH, "--num-actors", "2", "--steps", "400", "--log-seconds", "0")
    named = {name for name in playing if name.startswith("environment")}
    assert named == {"environments 0 to 1 of each group", "environments 2 to 3 of each group"}
    logged = rows(tmp_path)
    assert [int(row["step"]) for row in logged] == list(range(20, 401, 20))
    assert abs(int(float(logged[-1]["episodes"])) - 40) <= 4
    run(tmp_path, *MATCH, "--num-actors", "2", "--steps", "500")
    assert newest(tmp_path)[0] == 500


def test_a_deterministic_run_is_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, also where it was killed and goes on in more of them."""
    arguments = (*CARTPOLE, *EXACT, "--steps", "400", "--milestone-steps", "200")
    run(tmp_path / "one", *arguments)
    monkeypatch.setattr(local_engine, "env_processes", lambda *_: (1, 2))
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 12)
        with pytest.raises(Killed):
            run(tmp_path / "other", *arguments)
    monkeypatch.setattr(local_engine, "env_processes", lambda *_: (1, 3))
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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be pinned here")
@pytest.mark.parametrize(("sets", "groups"), [(1, 2), (2, 3)])
def test_each_process_has_a_core(sets: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is played by one set; observations are not copied."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    monkeypatch.setattr(plan, "own_cpus", lambda count: cores * sets if count == 2 * sets else None)
    with ExitStack() as stack:
        config = replace(parse(["train", *MATCH]), num_envs=4)
        servers = plan.start_env_servers(config, sets, 2, groups, stack)
        envs = plan.await_process_envs(servers, stack)
        assert [env.num_envs for env in envs] == [4] * groups
        pids = [tuple(child._process.pid or 0 for child in env._children) for env in envs]
        assert len(set(pids)) == sets
        assert all([os.sched_getaffinity(pid) for pid in some] == [{core} for core in cores] for some in pids)
        first, _ = envs[1].reset(seed=1)
        assert np.shares_memory(first, envs[1].step(np.zeros(4, int))[0])


@pytest.mark.usefixtures("two")
def test_a_gpu_loads_its_libraries_while_environments_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def load(device: torch.device) -> None:
        order.extend(child.name for child in multiprocessing.active_children() if "env" in child.name)
        order.append(f"libraries of {device}")

    def wait(*given: Any) -> list[ProcessEnvs]:
        order.append("waiting")
        return plan.await_process_envs(*given)

    monkeypatch.setattr(local_engine, "load_libraries", load)
    monkeypatch.setattr(local_engine, "await_process_envs", wait)
    run(tmp_path, *MATCH, "--steps", "60")
    assert sorted(order[:2]) == ["environments 0 to 1", "environments 2 to 3"]
    assert order[2:] == ["libraries of cpu", "waiting"]


@pytest.mark.usefixtures("two")
def test_no_process_outlives_libraries_that_do_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture looks for processes that are left."""

    def load(device: torch.device) -> None:
        raise RuntimeError("CUDA driver")

    monkeypatch.setattr(local_engine, "load_libraries", load)
    with pytest.raises(RuntimeError, match="CUDA driver"):
        run(tmp_path, *MATCH, "--steps", "60")


@pytest.mark.parametrize("can", [True, False])
def test_a_gpu_reads_the_memory_of_each_group(
    can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as there is someone who writes into it; a driver that cannot is told of."""
    monkeypatch.setattr(local_engine, "env_processes", lambda *_: (1, 2))
    locked: list[int] = []

    @contextmanager
    def lock(memory: np.ndarray, device: torch.device) -> Iterator[bool]:
        locked.append(memory.ctypes.data)
        yield can
        locked.remove(memory.ctypes.data)
        assert any("environments" in child.name for child in multiprocessing.active_children())

    monkeypatch.setattr(local_engine, "page_locked", lock)
    seen: list[int] = []
    on_update(monkeypatch, lambda _: seen.append(len(set(locked))))
    said = listen(monkeypatch, "lock memory", lambda: None)
    run(tmp_path, *MATCH, "--num-actors", "2", "--steps", "60")
    assert set(seen) == {2} and not locked
    assert any("lock memory" in message for message in said) != can


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
