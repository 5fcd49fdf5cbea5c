"""`deltabeast bench throughput`: training set beside the speed of each of its stages alone."""

from __future__ import annotations

import copy
import dataclasses
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch
from rich.console import Console

from ...agents import Unroll
from ...agents.cpu.inference import FastInference
from ...agents.inference import EagerInference
from ..config import BenchThroughputConfig, TrainConfig
from ..errors import StoppedBySignal, require, require_positive
from ..processes.machine import prepare_process
from ..runs.log import read_rows
from ..training.cpu_parts import cache_spec
from ..training.local.engine import LocalEngine
from ..training.local.sources import batches
from ..training.local.workers import Worker
from ..training.plan import overlaps, resolve
from ..training.run import Run
from .env import emulation_speed

_WARM_UP = 3
"""Updates before anything is timed."""


@dataclass
class Throughput:
    """Agent steps a second of each stage alone and of training, and where the time of training went."""

    emulation: float
    inference: float
    learning: float
    acting: float
    """inference that caches for the learner what it computes, where training does so"""
    backward: float
    """learning from an unroll of which that is cached"""
    bound: float
    """highest speed of training: with turns 1 / (1/emulation + 1/acting + 1/backward); where actors
    overlap with the learner, the slowest of acting, all emulators busy, and learning"""
    bound_apart: float
    """the same if the learner computes everything anew: 1 / (1/emulation + 1/inference + 1/learning)"""
    trained: float
    share_of_bound: float
    share_of_emulation: float
    policy_lag: float
    core_share: float
    """share of learning alone that is forward and backward of the recurrent core, not compiled"""
    time_shares: dict[str, float]
    """shares of training: emulation, inference, learning, waiting"""
    bus_bytes: float
    """observations that crossed the bus, bytes per agent step; 0 on a CPU"""
    peak_memory_bytes: int
    """peak of the process, or of the GPU"""
    uses: str
    """processes and threads of the training, in words"""


def bench_throughput(config: BenchThroughputConfig) -> Iterator[Throughput]:
    """Measure the stages and the training in turns, `rounds` times; one result, the medians.

    Raises UsageError for a configuration that `train` would refuse.
    """
    require(config, "rounds", least=1)
    require_positive(config, "seconds")
    prepare_process()
    rounds = []
    for number in range(1, config.rounds + 1):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            # On the terminal, whatever becomes of the table: a learner may compile for a while.
            stack.enter_context(Console(stderr=True).status(f"measuring, round {number} of {config.rounds}"))
            training = _train_config(config, Path(folder, "run"))
            resolve(training)
            engine = LocalEngine(training, stack)
            run = Run(training, engine, stack, Console(quiet=True))
            rounds.append(_measure(run, engine, config.seconds))
    middle = {
        field.name: statistics.median(getattr(one, field.name) for one in rounds)
        for field in dataclasses.fields(Throughput)
        if field.name not in ("time_shares", "uses")
    }
    shares = {
        name: statistics.median(one.time_shares[name] for one in rounds) for name in rounds[0].time_shares
    }
    yield Throughput(**middle, time_shares=shares, uses=rounds[0].uses)


def _train_config(config: BenchThroughputConfig, run_dir: Path) -> TrainConfig:
    shared = {field.name for field in dataclasses.fields(TrainConfig)}
    given = {name: value for name, value in vars(config).items() if name in shared}
    if config.env is None:
        given["game"] = config.game or "pong"
    return TrainConfig(**given, run_dir=run_dir, log_seconds=config.seconds / 2)


def _measure(run: Run, engine: LocalEngine, seconds: float) -> Throughput:
    emulation = _together(engine, _emulation, seconds)
    inference = _together(engine, _inference, seconds)
    learning = _together(engine, _learning, seconds)
    acting, backward = inference, learning
    if any(cache_spec(engine.process_config, engine.device, engine.agent)):
        acting = _together(engine, _acting, seconds)
        backward = _together(engine, _backward, seconds)
    core = _together(engine, _core, seconds / 3)
    trained, rows, bus_bytes = _training(run, engine, seconds)
    if overlaps(engine.config, engine.device):
        actors = len(engine.actors) / (1 / emulation + 1 / inference)
        bound = bound_apart = min(actors, emulation, learning)
    else:
        bound = 1 / (1 / emulation + 1 / acting + 1 / backward)
        bound_apart = 1 / (1 / emulation + 1 / inference + 1 / learning)
    names = ("emulation", "inference", "learning", "waiting")
    shares = {name: statistics.fmean(row[f"share_{name}"] for row in rows) for name in names}
    lag = statistics.fmean(row["policy_lag"] for row in rows)
    peak = _peak_memory(engine.device)
    return Throughput(
        emulation,
        inference,
        learning,
        acting,
        backward,
        bound,
        bound_apart,
        trained,
        trained / bound,
        trained / emulation,
        policy_lag=lag,
        core_share=learning / core,
        time_shares=shares,
        bus_bytes=bus_bytes,
        peak_memory_bytes=peak,
        uses=engine.uses,
    )


def _together(
    engine: LocalEngine, stage: Callable[[LocalEngine | Worker, float], float], seconds: float
) -> float:
    """Add up the speeds of all processes that share the work, measured at the same time."""
    engine.workers.start(stage, seconds)
    return stage(engine, seconds) + sum(engine.workers.results())


def _rate(work: Callable[[], int], seconds: float, device: torch.device) -> float:
    """Measure the agent steps a second of `work`, which returns the steps it did."""
    work()
    _wait_for(device)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        steps += work()
        _wait_for(device)
    return steps / (time.perf_counter() - start)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _emulation(one: LocalEngine | Worker, seconds: float) -> float:
    """Time the environments of one actor alone, with random actions."""
    return emulation_speed(one.actors[0].env, seconds)


def _inference(one: LocalEngine | Worker, seconds: float) -> float:
    """Time one actor's choices alone, on observations that lie ready; nothing is cached."""
    inference = one.actors[0].inference
    if isinstance(inference, FastInference):
        inference = inference.without_cache()
    return _choices(one, inference, seconds)


def _acting(one: LocalEngine | Worker, seconds: float) -> float:
    """Time the choices of an actor that caches what it computes, on observations that lie ready."""
    return _choices(one, one.actors[0].inference, seconds)


def _choices(one: LocalEngine | Worker, inference: EagerInference, seconds: float) -> float:
    unroll = one.actors[0].collect()
    inference.state = unroll.state

    def work() -> int:
        with torch.no_grad(), inference.constant_weights():
            inference.start_unroll(unroll)
            for t in range(len(unroll.action)):
                inference.select_actions(unroll, t)
                unroll.action[t].cpu()
            inference.finish_unroll(unroll)
        return unroll.num_steps

    return _rate(work, seconds, one.device)


def _learning(one: LocalEngine | Worker, seconds: float) -> float:
    """Time the learner alone, on a batch that lies ready."""
    batch = next(_batches(one))
    one.actors[0].collect()  # takes its place in the cache
    with _weights_restored(one):
        return _rate(lambda: _learn(one, batch), seconds, one.device)


def _backward(one: LocalEngine | Worker, seconds: float) -> float:
    """Time the learner alone, on batches of such actors; each is used up, so others are made untimed."""
    steps, spent = 0, 0.0
    unrolls = _batches(one)
    with _weights_restored(one):
        _learn(one, next(unrolls))
        for batch in unrolls:
            start = time.perf_counter()
            steps += _learn(one, batch)
            spent += time.perf_counter() - start
            if spent >= seconds:
                break
    return steps / spent


def _batches(one: LocalEngine | Worker) -> Iterator[Unroll]:
    return batches((actor.collect() for actor in cycle(one.actors)), one.process_config.batch_size)


def _learn(one: LocalEngine | Worker, batch: Unroll) -> int:
    part = one.learner.backward(batch)
    if isinstance(one, LocalEngine):  # one of them changes the weights
        one.learner.step([part])
    return batch.num_steps


@contextmanager
def _weights_restored(one: LocalEngine | Worker) -> Iterator[None]:
    """Undo what is learned inside: training should not begin with what one batch taught again and again."""
    before = copy.deepcopy((one.learner.state_dict(), one.agent.state_dict()))
    yield
    if isinstance(one, LocalEngine):
        one.learner.load_state_dict(before[0])
        one.agent.load_state_dict(before[1])


def _core(one: LocalEngine | Worker, seconds: float) -> float:
    """Time forward and backward of the core alone, on a batch."""
    core, config = one.agent.core, one.process_config
    T, B = config.unroll_length + 1, config.batch_size
    x = torch.randn(T, B, core.input_size, device=one.device, requires_grad=True)
    state = core.initial_state(B, one.device)
    reset = torch.zeros(T, B, dtype=torch.bool, device=one.device)
    ones = torch.ones(T, B, core.output_size, device=one.device)

    def work() -> int:
        y, _ = core.unroll(x, state, reset)
        torch.autograd.grad(y, [x, *core.parameters()], ones, allow_unused=True)
        return (T - 1) * B

    return _rate(work, seconds, one.device)


def _training(run: Run, engine: LocalEngine, seconds: float) -> tuple[float, list[dict[str, float]], float]:
    """Train; return the speed after warming up, the log, and the bytes over the bus per agent step."""
    marks: list[tuple[float, int]] = []
    first, steps = engine.learner.version, engine.learner.steps
    sent = sum(actor.inference.bytes_sent for actor in engine.actors)

    def watch() -> None:
        while engine.learner.version < first + _WARM_UP:
            time.sleep(0.05)
        marks.append((time.perf_counter(), engine.learner.steps))
        time.sleep(seconds)
        # At an update's end: a batch half learned would count for nothing.
        version = engine.learner.version
        while engine.learner.version == version:
            time.sleep(0.001)
        marks.append((time.perf_counter(), engine.learner.steps))
        engine.stop.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        run.run()
    except StoppedBySignal:
        if engine.learner.steps == 0 or len(marks) < 2:
            raise
    thread.join()
    (start, before), (end, after) = marks
    sent = sum(actor.inference.bytes_sent for actor in engine.actors) - sent
    speed = (after - before) / (end - start)
    return speed, read_rows(run.run_dir / "logs.csv"), sent / (engine.learner.steps - steps)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
