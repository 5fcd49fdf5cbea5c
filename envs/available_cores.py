"""Count the CPU cores that this process may really use."""

import math
import os
from pathlib import Path


def available_cores() -> int:
    """Return the number of cores the scheduler lets this process run on, within a container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    return max(1, min(cores, math.ceil(_cgroup_limit(Path("/sys/fs/cgroup")))))


def _cgroup_limit(root: Path) -> float:
    """Return a container's CPU quota in cores, infinite where there is none (cgroup v2, then v1)."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return 1e9
    if (
        not quota.isdigit() or not period.isdigit() or int(quota) == 0 or int(period) == 0
    ):  # "max" and -1: none
        return 1e9
    return int(quota) / int(period)
