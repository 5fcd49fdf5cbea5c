"""`deltabeast bench`: measure, show as a table, keep as JSON with all that the numbers depend on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ...agents import files
from ...agents.reading import read_object
from ...envs import available_cores
from ..config import BenchConfig, BenchEnvConfig, BenchKernelsConfig, BenchThroughputConfig
from ..errors import RunError, UsageError
from ..runs.directory import versions
from .tables import env_speed_table, kernel_table, throughput_table

Row = TypeVar("Row")


def run_benchmark(config: BenchConfig) -> None:
    """Run one benchmark. Raises UsageError for options that are wrong, RunError if a kernel is."""
    what = config.what
    if what.json is not None and not os.access(what.json.absolute().parent, os.W_OK):
        raise UsageError(f"cannot write {what.json}; give --json a path in a directory that exists")
    if what.json is not None and what.json.exists() and "benchmark" not in read_object(what.json):
        raise UsageError(f"{what.json} holds something else than a benchmark; give --json another path")
    if isinstance(what, BenchKernelsConfig):
        from .kernels import TOLERANCE, bench_kernels

        kernels = _show(bench_kernels(what), kernel_table)
        _keep(what, kernels)
        if wrong := [f"{kernel.rule} ({kernel.backend})" for kernel in kernels if kernel.failed]:
            raise RunError(f"not within {TOLERANCE} of the float64 reference: {', '.join(wrong)}")
    elif isinstance(what, BenchEnvConfig):
        from .env import bench_env

        _keep(what, _show(bench_env(what), env_speed_table))
    else:
        from .throughput import bench_throughput

        _keep(what, _show(bench_throughput(what), throughput_table))


def hardware() -> dict[str, Any]:
    """Describe the machine that numbers come from."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"processor": _processor(), "cores": available_cores(), "gpus": gpus}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _show(rows: Iterable[Row], table: Callable[[list[Row]], Table]) -> list[Row]:
    """Draw the table as its rows come in; return the rows."""
    # A pipe has no width: tables in it are as wide as they need to be.
    console = Console(width=None if os.isatty(1) else 160)
    collected: list[Row] = []
    if not console.is_terminal:
        try:
            collected += rows
        finally:  # interrupted, it shows what it has
            if collected:
                console.print(table(collected))
        return collected
    with Live(table(collected), console=console, auto_refresh=False) as live:
        for row in rows:
            collected.append(row)
            live.update(table(collected), refresh=True)
    return collected


def _keep(config: BenchKernelsConfig | BenchEnvConfig | BenchThroughputConfig, rows: Iterable[Any]) -> None:
    if config.json is None:
        return
    settings = {name: value for name, value in asdict(config).items() if name != "json"}
    content = {
        "benchmark": type(config).__name__.removeprefix("Bench").removesuffix("Config").lower(),
        "settings": settings,
        "hardware": hardware(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "results": [asdict(row) for row in rows],
    }
    try:
        files.write(config.json, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {config.json}: {files.why(error)}") from error
