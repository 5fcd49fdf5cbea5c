"""`deltabeast bench kernels`: is every kernel right on this machine, and how fast is it?"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...agents.cuda.graphs import record
from ...cores.options import near_names
from ...kernels import Rule
from ...kernels.rules import RULES
from ..config import BenchKernelsConfig
from ..errors import UsageError, require
from ..processes.machine import prepare_process, resolve_device
from . import fla
from .memories import MEMORIES

TOLERANCE = 1e-4
"""Relative error against the float64 reference, of a whole tensor and of each of its rows."""

BFLOAT16_TOLERANCE = 5e-2
"""The same for peers that compute in bfloat16: their routes are fast, not exact."""

WINDOW = 64
"""Steps that attention sees besides the present one."""

Inputs = Sequence[Tensor]


@dataclass
class Measured:
    """One backend of one rule, or a peer. Times are medians in seconds of a span of T steps."""

    rule: str
    backend: str
    error: float
    """largest relative error of any output or gradient, whole tensors and rows"""
    tolerance: float = TOLERANCE
    ours: bool = True
    forward: float | None = None
    both: float | None = None
    """forward and backward"""
    captured: float | None = None
    """the same as one CUDA graph, as learners run them: no time of the host; None without a GPU, and for what
    no graph can hold"""
    ratio: float | None = None
    """how many times faster than the reference, forward and backward: the median over pairs"""
    peak_bytes: int | None = None
    """memory at the highest point of forward and backward, beyond the inputs"""

    @property
    def right(self) -> bool:
        return self.error <= self.tolerance

    @property
    def failed(self) -> bool:
        return self.ours and not self.right


class Job(NamedTuple):
    """What is timed: outputs of leaves, and their gradients."""

    measured: Measured
    function: Callable[..., Sequence[Tensor]]
    leaves: Inputs


def bench_kernels(config: BenchKernelsConfig) -> Iterator[Measured]:
    """Check and time every backend of every rule and memory; one that is wrong gets no time.

    Raises UsageError for rules, sizes or a device that cannot be.
    """
    every = {rule.name: rule for rule in (*RULES.values(), *MEMORIES)}
    for name in config.rules:
        if name not in every:
            hint = near_names(name, every) or f"choose from {', '.join(sorted(every))}"
            raise UsageError(f"--rules {name}: {hint}")
    require(config, "steps", "batch_size", "heads", "head_size", "repeats", least=1)
    require(config, "reset_share", least=0, most=1)
    try:
        device = resolve_device(config.device)
    except ValueError as error:
        raise UsageError(str(error)) from error
    prepare_process()
    generator = torch.Generator().manual_seed(config.seed)
    spans = config.steps, config.batch_size
    reset = (torch.rand(spans, generator=generator) < config.reset_share).to(device)
    for rule in [every[name] for name in config.rules or every]:
        inputs = tuple(x.to(device) for x in rule.random_inputs(_sizes(rule, config), generator))
        want = _gradients(_ours(rule, reset, "reference"), [x.double() for x in inputs])
        backends = rule.backends_on(device, config.head_size)
        jobs = [_check(rule, name, inputs, reset, want) for name in backends]
        jobs += [_check_fla(rule, route, inputs, reset, want) for route in fla.routes(rule, device)]
        _time(jobs, config.repeats)
        yield from (job.measured for job in jobs)


def _sizes(rule: Rule, config: BenchKernelsConfig) -> dict[str, int]:
    """Return the size of each letter in a rule's shapes."""
    sizes = {"T": config.steps, "B": config.batch_size, "H": config.heads, "S": 1}
    # An LSTM of published width has twice as many units as all heads together.
    sizes["N"] = 2 * config.heads * config.head_size
    sizes |= {"M": WINDOW, "G": 1, "n": 2}
    return {letter: sizes.get(letter, config.head_size) for letter in rule.shapes.letters}


def _ours(rule: Rule, reset: Tensor, backend: str) -> Callable[..., Sequence[Tensor]]:
    return lambda *leaves: rule(*leaves, reset, backend=backend)


def _check(rule: Rule, backend: str, inputs: Inputs, reset: Tensor, want: Sequence[Tensor]) -> Job:
    function = _ours(rule, reset, backend)
    measured = Measured(rule.name, backend, _error(_gradients(function, inputs), want))
    return Job(measured, function, _leaves(inputs))


def _check_fla(rule: Rule, route: fla.Route, inputs: Inputs, reset: Tensor, want: Sequence[Tensor]) -> Job:
    """Warns, and calls it wrong, if its function raises: it may not be made for this machine."""
    pieces = fla.cut(reset)
    leaves = _leaves(fla.pack(rule, inputs, pieces, route.dtype))

    def function(*leaves: Tensor) -> Sequence[Tensor]:
        return route.function(*leaves, pieces.bounds)

    tolerance = BFLOAT16_TOLERANCE if route.dtype is torch.bfloat16 else TOLERANCE
    name = f"{route.name} ({str(route.dtype).removeprefix('torch.')})"
    try:
        y, states = function(*leaves)
        outputs = fla.unpack(y, states, pieces)
        gradients = torch.autograd.grad(outputs, leaves, _weights(outputs))
    except Exception as error:
        warnings.warn(f"{rule.name}, {name}: {type(error).__name__}: {error}", stacklevel=1)
        return Job(Measured(rule.name, name, float("inf"), tolerance, ours=False), function, leaves)
    got = [*(out.detach() for out in outputs), *fla.unpack_gradients(rule, gradients, pieces)]
    return Job(Measured(rule.name, name, _error(got, want), tolerance, ours=False), function, leaves)


def _gradients(function: Callable[..., Sequence[Tensor]], inputs: Inputs) -> list[Tensor]:
    """Outputs, and the gradients of a fixed random sum of them."""
    leaves = _leaves(inputs)
    outputs = function(*leaves)
    return [*(out.detach() for out in outputs), *torch.autograd.grad(outputs, leaves, _weights(outputs))]


def _leaves(inputs: Inputs) -> list[Tensor]:
    return [x.detach().requires_grad_() for x in inputs]


def _weights(outputs: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(out.shape, generator=generator).to(out) for out in outputs]


def _error(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """Return the largest relative error of a tensor or of one of its rows; inf if a number is not finite."""
    worst = 0.0
    for x, y in zip(got, want, strict=True):
        x, y = x.double().reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        if not x.isfinite().all():
            return float("inf")
        error, size = (x - y).norm(dim=-1), y.norm(dim=-1)
        # Rows that are nearly zero beside the others are measured by the others.
        typical = 0.1 * size.square().mean().sqrt() + 1e-30
        whole, rows = error.norm() / (size.norm() + 1e-30), (error / (size + typical)).max()
        worst = max(worst, float(whole), float(rows))
    return worst


def _time(jobs: Sequence[Job], repeats: int) -> None:
    """Time the jobs in turns, so that whatever else the machine does falls on all of them alike."""
    right = [job for job in jobs if job.measured.right]
    work = {job.measured.backend: _work(job) for job in right}
    forward: dict[str, list[float]] = {name: [] for name in work}
    both: dict[str, list[float]] = {name: [] for name in work}
    for index in range(repeats + 3):
        for name, once in work.items():
            first, second = once()
            if index >= 3:  # the first ones warm up
                forward[name].append(first)
                both[name].append(first + second)
    for measured in (job.measured for job in right):
        name = measured.backend
        measured.forward, measured.both = statistics.median(forward[name]), statistics.median(both[name])
        if "reference" in both:
            pairs = zip(both["reference"], both[name], strict=True)
            measured.ratio = statistics.median(slow / fast for slow, fast in pairs)
        measured.peak_bytes = _peak_bytes(work[name])
    for job in right:
        if job.leaves[0].is_cuda:
            job.measured.captured = _time_captured(job, repeats)


def _work(job: Job) -> Callable[[], tuple[float, float]]:
    """Run one forward and backward; return the seconds of each."""
    ones = [torch.ones_like(out) for out in job.function(*job.leaves)]
    clock = _cuda_clock if ones[0].is_cuda else time.perf_counter

    def once() -> tuple[float, float]:
        start = clock()
        outputs = job.function(*job.leaves)
        middle = clock()
        torch.autograd.grad(outputs, job.leaves, ones)
        return middle - start, clock() - middle

    return once


def _time_captured(job: Job, repeats: int) -> float | None:
    """Return the median time of forward and backward as one CUDA graph; None if none can hold them."""
    ones = [torch.ones_like(out) for out in job.function(*job.leaves)]
    try:
        _, replay = record(lambda: torch.autograd.grad(job.function(*job.leaves), job.leaves, ones))
    except RuntimeError:
        return None
    times = []
    for _ in range(repeats + 3):
        start = _cuda_clock()
        replay()
        times.append(_cuda_clock() - start)
    return statistics.median(times[3:])


def _cuda_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _peak_bytes(work: Callable[[], Any]) -> int:
    """Memory at the highest point, beyond what was there before."""
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would announce each profile
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest
