"""What each core is and costs: the rows of `deltabeast cores`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..agents.shapes import count_numbers
from ..cores import Core, core_feature_size, core_names, make_core
from ..cores.registry import find_core
from .processes.machine import prepare_process

STEPS, ROWS, REPEATS = 50, 32, 7


GROUPS = {
    "no memory": ("feedforward", "gated_feedforward"),
    "slow weights": ("lstm", "gru"),
    "fast weights: additive": ("linear_transformer", "gated_linear_attention", "gated_rule"),
    "delta rule": (
        *("delta_net", "gated_delta_net", "momentum_delta_net"),
        *("kda", "gated_delta_net_2", "delta_product", "rwkv7"),
    ),
    "recurrent delta rule": ("rdn", "rdn_large", "delta_rnn", "delta_lstm"),
    "stacked fast weights": ("delta_mlp", "delta_delta_net"),
    "attention to a window": ("softmax_attention", "deltaformer", "gtrxl", "transformer"),
    "mixed": ("hybrid",),
}
"""Cores by what their memory is, in the order of cores/README.md."""


ADVICE = {
    "not known beforehand": "hybrid with layers kda,gtrxl",
    "recall over many steps": "the same, or gtrxl; both see 64 steps back",
    "hold until it is overwritten": "delta_net, rdn",
    "the last few steps": "lstm, gru",
    "count": "rdn, delta_product",
}
"""By what a task asks of a memory, which cores to try first: results/suite."""


class ListedCore(NamedTuple):
    group: str
    """one of `GROUPS`, or further"""
    name: str
    equation: str
    source: str
    nets: tuple[str, str, str] | None
    """slow net, update rule and fast net; None for a core that is no fast weight programmer"""
    parameters: int
    state: int
    """floats for each environment"""


def list_cores() -> list[ListedCore]:
    """Return every registered core at its default size, group by group."""
    rows = []
    groups = {name: group for group, names in GROUPS.items() for name in names}
    groups |= {name: "further" for name in core_names() if name not in groups}
    with torch.device("meta"):  # shapes only: nothing is allocated or drawn
        for name, group in groups.items():
            core, kind = make_default(name), find_core(name)
            parameters, state = count_numbers(core.parameters()), count_numbers(core.initial_state(1))
            equation, source = (getattr(kind, attribute, "") for attribute in ("equation", "source"))
            nets = getattr(kind, "nets", None)
            rows.append(ListedCore(group, name, equation, source, nets, parameters, state))
    return rows


def measure_cores(cores: Mapping[str, Core]) -> dict[str, tuple[float, float]]:
    """Time each core: seconds of a step of 32 rows, and of an unroll of 50 such steps with its gradients.

    Medians of several, all cores in turns, so that whatever else the machine does falls on all of them alike.
    """
    prepare_process()
    work = {name: _work(core) for name, core in cores.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cores}
    for index in range(REPEATS + 1):
        for name, both in work.items():
            seconds = both()
            if index:  # the first one warms up
                times[name].append(seconds)
    return {
        name: (statistics.median(a for a, _ in each), statistics.median(b for _, b in each))
        for name, each in times.items()
    }


def make_default(name: str, **options: Any) -> Core:
    """Make a core as an agent has it: with as many inputs as its stem has features, and the last reward."""
    return make_core(name, core_feature_size(name) + 1, **options)


def _work(core: Core) -> Callable[[], tuple[float, float]]:
    """Return a function that takes some steps and one unroll; it returns seconds of a step and of that."""
    x, reset = torch.randn(STEPS, ROWS, core.input_size), torch.zeros(STEPS, ROWS, dtype=torch.bool)
    weights = [x.requires_grad_(), *(p for p in core.parameters() if p.requires_grad)]
    start = core.initial_state(ROWS)

    def once() -> tuple[float, float]:
        begin, state = time.perf_counter(), start
        with torch.inference_mode():
            for t in range(STEPS):
                _, state = core.step(x[t], state, reset[t])
        stepped = time.perf_counter()
        y, _ = core.unroll(x, start, reset)
        torch.autograd.grad(y.sum(), weights, allow_unused=True)
        return (stepped - begin) / STEPS, time.perf_counter() - stepped

    return once
