"""How many threads the processes of a run have, and which limit decides it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...agents import Agent
from ...envs import available_threads, core_limits, thread_limits
from ..config import TrainConfig


def process_threads(config: TrainConfig, cpus: int, count: int) -> int:
    """Return how many threads each of `count` processes has on its `cpus`: as asked, or all it may use."""
    each = max(1, cpus // count)
    return each if config.threads is not None else available_threads(each)


def operation_threads(config: TrainConfig, threads: int, agent: Agent) -> int:
    """Return among how many of a process's threads one operation is divided.

    With two threads, bf16 operations use one unless --threads is given: oneDNN spin-waits at barriers in the
    gradient of a convolution. Two threads gain a quarter at most where each has a core to itself, and run at
    a tenth of the speed where both, or other work, are on one (launch/training/README.md).
    """
    spin_waits = threads == 2 and agent.autocast_dtype == torch.bfloat16
    return 1 if spin_waits and config.threads is None else threads


def uses(count: int, threads: int, env_processes: int = 0) -> str:
    """Return in words the processes and threads that a run uses, and the processes that only step
    environments."""
    processes = "1 process" if count == 1 else f"{count} processes"
    beside = f", environments in {env_processes} more" if env_processes else ""
    return f"{processes} of {threads} thread{'s' if threads > 1 else ''}{beside}"


def thread_notes(cpus: int, count: int, threads: int) -> list[str]:
    """Name the limit by which a run uses less than its CPU set."""
    notes, limits = [], core_limits()
    name, here = _least(limits), limits["its CPU set"]
    if cpus == limits[name] < here:
        notes.append(f"uses {cpus} of {here} cores, the limit of {name}")
    if threads < (each := max(1, cpus // count)):
        variable = _least(thread_limits())
        notes.append(f"uses {threads} of {each} threads in each process, the limit of {variable}")
    return notes


def _least(limits: Mapping[str, int]) -> str:
    return min(limits, key=lambda name: limits[name])
