"""CPU quotas of Linux control groups, versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path


def cpu_quota(process: Path = Path("/proc/self")) -> float:
    """Return how many cores the control groups of a process leave it, infinity where none limits it.

    Each group above that of the process, up to what is mounted here, limits it too: man 7 cgroups.
    """
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    return min((_quota(folder) for folder in _folders(groups, mounts)), default=math.inf)


def _folders(groups: list[str], mounts: list[str]) -> Iterator[Path]:
    """List the folders of the process's groups, from its own upwards, in each tree that governs CPUs."""
    own: dict[str, str] = {}
    for line in groups:  # 4:cpu,cpuacct:/path of version 1, 0::/path of version 2
        number, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(["version 2"] if number == "0" else controllers.split(","), path)
    for line in mounts:  # 36 25 0:30 /root /mount/point options ... - type source options
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        name = "version 2" if kind == "cgroup2" else "cpu"
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            inside = Path(own.get(name, "/"))
            mounted = inside.is_relative_to(root) and ".." not in inside.parts
            folder = Path(point) / (inside.relative_to(root) if mounted else "")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(point))


def _quota(folder: Path) -> float:
    """Return the cores that one group's quota allows."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return math.inf
    numbers = quota.isdigit() and period.isdigit()  # "max" and -1: none
    return int(quota) / int(period) if numbers and int(quota) and int(period) else math.inf
