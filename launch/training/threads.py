"""How many threads the processes of a run have, and by whose word."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...agents import Agent
from ...envs import available_threads, core_limits, thread_limits
from ..config import TrainConfig


def process_threads(config: TrainConfig, cores: int, count: int) -> int:
    """Return how many threads each of `count` processes has of `cores`: as asked, or all it may use."""
    each = max(1, cores // count)
    return each if config.threads is not None else available_threads(each)


def operation_threads(config: TrainConfig, threads: int, agent: Agent) -> int:
    """Return among how many of a process's threads one operation is shared out.

    Not among two in bfloat16, unless --threads says so: oneDNN's wait for each other awake, at barriers in
    the gradient of a convolution. Two gain a quarter at most where each has a core to itself, and do a tenth
    where both are on one, or others want it too (launch/training/README.md).
    """
    waits_awake = threads == 2 and agent.autocast_dtype == torch.bfloat16
    return 1 if waits_awake and config.threads is None else threads


def uses(count: int, threads: int) -> str:
    """Say for people what a run uses."""
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"{processes} of {threads} thread{'s' if threads > 1 else ''}"


def thread_notes(cores: int, count: int, threads: int) -> list[str]:
    """Say by whose word a run uses less than its CPU set."""
    notes, limits = [], core_limits()
    name, here = _least(limits), limits["its CPU set"]
    if cores == limits[name] < here:
        notes.append(f"uses {cores} of {here} cores, the limit of {name}")
    if threads < (each := max(1, cores // count)):
        variable = _least(thread_limits())
        notes.append(f"uses {threads} of {each} threads in each process, the limit of {variable}")
    return notes


def _least(limits: Mapping[str, int]) -> str:
    return min(limits, key=lambda name: limits[name])
