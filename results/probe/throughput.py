"""How fast probes learn, and how much of it is the core's kernel: updates of each task and core in turns.

Usage: python results/probe/throughput.py [TASK...]
The kernel is the rule of a core's memories, all layers, forward and backward, on a batch's shape; of an LSTM
it is the core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from deltabeast.cores.fast_weights import FastWeights
from deltabeast.launch.config import ProbeConfig
from deltabeast.launch.probe.data import Fresh, to_batch
from deltabeast.launch.probe.learner import Learner
from deltabeast.launch.probe.recipe import make_recipe
from deltabeast.launch.processes.machine import prepare_process

CPU = torch.device("cpu")
REPEATS = 5
CORES = ("lstm", "linear_transformer", "delta_net", "delta_rnn", "rdn")
TASKS: dict[str, dict[str, Any]] = {
    "retrieval": {"size": 60},
    "swap": {"length": 256},
    "code": {"variables": 3},
    "listops": {"depth": 10},
    "dag": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; default: all")
    tasks: list[str] = parser.parse_args().tasks
    if unknown := [task for task in tasks if task not in TASKS]:
        parser.error(f"unknown task {unknown[0]}; say one of {', '.join(TASKS)}")
    prepare_process()
    print("| task | core | tokens in a batch | updates/s | tokens/s | kernel alone, ms | its share |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for task in tasks or TASKS:
        options = TASKS[task]
        work = {core: _work(task, options, core) for core in CORES}
        times: dict[str, list[tuple[float, float]]] = {core: [] for core in CORES}
        for index in range(REPEATS + 1):
            for core, (_, update, kernel) in work.items():
                if index:  # the first one warms up
                    times[core].append((_timed(update), _timed(kernel)))
                else:
                    update(), kernel()
        for core, (tokens, *_) in work.items():
            update, kernel = (statistics.median(each) for each in zip(*times[core], strict=True))
            name = " ".join([task, *(f"{key} {value}" for key, value in options.items())])
            speed = f"{1 / update:.2f} | {tokens / update:,.0f}"
            print(f"| {name} | {core} | {tokens:,} | {speed} | {1000 * kernel:.1f} | {kernel / update:.0%} |")


def _work(task: str, options: dict[str, Any], core: str) -> tuple[int, Callable[[], Any], Callable[[], Any]]:
    """Return the tokens of a batch, an update, and the same for the kernel alone."""
    recipe = make_recipe(ProbeConfig(task, task_options=options, core=core, shell="on"))  # type: ignore[arg-type]
    batch = to_batch(Fresh(replace(recipe, curriculum=None), 1).batch(0), CPU)
    learner = Learner(recipe, 1, CPU)
    (steps, rows), model = batch.tokens.shape, learner.model
    memories = [part for part in model.modules() if isinstance(part, FastWeights)]

    def given(*shape: int) -> torch.Tensor:
        return torch.randn(steps, rows, *shape, requires_grad=True)

    if memories:
        parts = [tuple(given(memory.num_heads, size) for size in memory.sizes) for memory in memories]
        states = [
            tuple(torch.zeros(rows, *part.shape) for part in memory.layer_state_parts())
            for memory in memories
        ]

        def kernel() -> None:
            for memory, projections, state in zip(memories, parts, states, strict=True):
                y, _ = memory.unroll(projections, state, batch.reset)
                torch.autograd.grad(y.sum(), projections, allow_unused=True)
    else:
        alone: Any = model.core
        x, start = given(alone.input_size), alone.initial_state(rows)

        def kernel() -> None:
            y, _ = alone.unroll(x, start, batch.reset)
            torch.autograd.grad(y.sum(), [x, *alone.parameters()], allow_unused=True)

    return steps * rows, lambda: learner.update(batch, 0), kernel


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
