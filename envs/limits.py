"""Count the CPU cores that this process may use, and the threads, under every limit that is set."""

import math
import os

from .control_groups import cpu_quota

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit the threads of each process, as torch itself reads them."""


def available_cores() -> int:
    """Return how many cores this process may use."""
    return min(core_limits().values())


def core_limits() -> dict[str, int]:
    """Return how many cores this process may use by the name of each limit."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    limits = {"its CPU set": cores}
    if math.isfinite(quota := cpu_quota()):
        limits["the quota of its control group"] = max(1, math.ceil(quota))
    if slurm := _number("SLURM_CPUS_PER_TASK"):
        limits["SLURM_CPUS_PER_TASK"] = slurm
    return limits


def available_threads(cores: int | None = None) -> int:
    """Return how many threads a process may use for `cores`, by default all that are available."""
    return min([cores or available_cores(), *thread_limits().values()])


def thread_limits() -> dict[str, int]:
    """Return the maximum number of threads of a process, by the variable that limits it."""
    return {name: number for name in _THREADS if (number := _number(name))}


def _number(variable: str) -> int | None:
    """Read a number from an environment variable; of a list, for nested levels, the first. Zero is none."""
    first = os.environ.get(variable, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else None
