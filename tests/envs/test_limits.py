"""Limits that others set: CPU sets, quotas at any level of a tree of control groups, variables."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from deltabeast.envs import available_cores, available_threads, core_limits, make_vector_env
from deltabeast.envs.control_groups import cpu_quota

VARIABLES = ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("deltabeast.envs.limits.cpu_quota", lambda: math.inf)


class Machine:
    """A process's entries in /proc, and the control groups that they name."""

    def __init__(self, root: Path, groups: str, *mounts: str) -> None:
        self.process, self.tree = root / "proc", root / "sys"
        self.process.mkdir()
        self.tree.mkdir()
        (self.process / "cgroup").write_text(groups)
        text = "".join(mount.replace("SYS", str(self.tree)) + "\n" for mount in mounts)
        (self.process / "mountinfo").write_text(text)

    def write(self, folder: str, **files: str) -> None:
        (self.tree / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.tree / folder / name.replace("_", ".", 1)).write_text(text + "\n")

    def quota(self) -> float:
        return cpu_quota(self.process)


VERSION_2 = "30 25 0:26 / SYS rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
VERSION_1 = "32 31 0:29 / SYS/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "33 31 0:30 / SYS/memory rw,relatime shared:9 - cgroup cgroup rw,memory"


def test_a_quota_counts_at_every_level_of_version_2(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path, "0::/system.slice/job.scope/step\n", "22 1 8:1 / / rw - ext4 /dev/sda1 rw", VERSION_2
    )
    machine.write("system.slice/job.scope/step", cpu_max="max 100000")
    machine.write("system.slice/job.scope", cpu_max="300000 100000")
    assert machine.quota() == 3
    machine.write("system.slice", cpu_max="150000 100000")
    assert machine.quota() == 1.5
    machine.write("system.slice/job.scope/step", cpu_max="50000 100000")
    assert machine.quota() == 0.5
    machine.write("another.slice", cpu_max="10000 100000")
    assert machine.quota() == 0.5, "that is not ours"


def test_a_quota_counts_at_every_level_of_version_1(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path, "5:memory:/elsewhere\n4:cpu,cpuacct:/slurm/job_7/task\n0::/\n", MEMORY, VERSION_1
    )
    machine.write("cpu,cpuacct/slurm/job_7/task", cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000")
    assert machine.quota() == math.inf
    machine.write("cpu,cpuacct/slurm/job_7", cpu_cfs_quota_us="400000", cpu_cfs_period_us="100000")
    assert machine.quota() == 4
    machine.write("cpu,cpuacct", cpu_cfs_quota_us="100000", cpu_cfs_period_us="50000")
    assert machine.quota() == 2
    machine.write("memory/slurm/job_7", cpu_cfs_quota_us="1", cpu_cfs_period_us="100000")
    assert machine.quota() == 2


@pytest.mark.parametrize(
    "path", ["/docker/abc", "/docker/abc/inner", "/", "/../../outside", "/docker/abcdef"]
)
def test_in_a_container_the_root_of_what_is_mounted_is_its_own_group(path: str, tmp_path: Path) -> None:
    mount = "32 31 0:29 /docker/abc SYS/cpu ro - cgroup cgroup rw,cpu"
    machine = Machine(tmp_path, f"4:cpu:{path}\n", mount)
    machine.write("cpu", cpu_cfs_quota_us="250000", cpu_cfs_period_us="100000")
    assert machine.quota() == 2.5
    machine.write("cpu/inner", cpu_cfs_quota_us="100000", cpu_cfs_period_us="100000")
    assert machine.quota() == (1 if path.endswith("inner") else 2.5)


def test_a_group_outside_of_what_is_seen_here_is_not_looked_for(tmp_path: Path) -> None:
    """A process may see a namespace of control groups without being in one of its groups."""
    machine = Machine(tmp_path, "0::/../other\n", VERSION_2.replace("SYS", "SYS/seen"))
    machine.write("other", cpu_max="100000 100000")
    machine.write("seen", cpu_max="300000 100000")
    assert machine.quota() == 3


@pytest.mark.parametrize(
    "text", ["", "max", "max 100000", "0 100000", "100000 0", "some 100000", "-1 100000"]
)
def test_what_is_no_quota_limits_nothing(text: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n", VERSION_2)
    machine.write("", cpu_max=text)
    assert machine.quota() == math.inf


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == math.inf


def test_the_least_limit_counts_and_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_cores() == 8 and core_limits() == {"its CPU set": 8}
    monkeypatch.setattr("deltabeast.envs.limits.cpu_quota", lambda: 5.5)
    assert available_cores() == 6
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert available_cores() == 3
    assert core_limits() == {"its CPU set": 8, "the quota of its control group": 6, "SLURM_CPUS_PER_TASK": 3}
    monkeypatch.setattr("deltabeast.envs.limits.cpu_quota", lambda: 0.2)
    assert available_cores() == 1
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "16")
    monkeypatch.setattr("deltabeast.envs.limits.cpu_quota", lambda: 64.0)
    assert available_cores() == 8, "more than there are is no more"


@pytest.mark.parametrize("given", ["", "0", "-2", "many", "1.5"])
def test_a_variable_that_says_nothing_limits_nothing(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, given)
    assert available_cores() == available_threads() == 8


def test_threads_of_a_process_are_limited_as_torch_limits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_threads() == 8 and available_threads(3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")  # the second is for regions within regions
    assert available_threads() == 2 and available_threads(1) == 1 and available_cores() == 8
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    assert available_threads() == 1


def test_emulators_keep_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    class Enough(Exception):
        pass

    def emulators(*_: object, num_threads: int, **__: object) -> None:
        given.append(num_threads)
        raise Enough

    monkeypatch.setattr("deltabeast.envs.atari.AtariVectorEnv", emulators)
    for limit, games, threads in (("3", 6, 3), ("3", 2, 2), ("", 6, 6)):
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
        with pytest.raises(Enough):
            make_vector_env("pong", num_envs=games)
        assert given.pop() == threads
