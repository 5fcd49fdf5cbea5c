"""Tests side by side (pytest-xdist, `make test`): a core for each worker, each file's tests on one worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

SLOWEST_FIRST = ("ray", "compiled", "evaluation", "comparison")
"""Parts of paths whose tests take minutes: begun last, they would be waited for alone."""


def take_a_core() -> None:
    """Keep this worker and what it starts on one core: thread pools that share cores wait for each other.

    Does nothing where tests run in one process, which then has all cores.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    torch.set_num_threads(1)


def group(items: list[pytest.Item]) -> None:
    """Keep a file's tests, or those that share a cluster, on one worker; the slowest come first."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item.path)))
    items.sort(key=lambda item: _rank(item.path.parts))


def _group(path: Path) -> str:
    return str(path.parent if path.parent.name == "ray" else path)


def _rank(parts: Sequence[str]) -> int:
    path = "/".join(parts)
    return next((i for i, name in enumerate(SLOWEST_FIRST) if f"/{name}" in path or f"_{name}" in path), 9)
