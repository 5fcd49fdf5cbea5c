"""`deltabeast bench env`: the speed of the games alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
from gymnasium.vector import VectorEnv

from ...envs import available_cores, canonical_game, make_vector_env
from ..config import BenchEnvConfig
from ..errors import UsageError, require, require_positive
from ..processes.env_processes import process_envs
from ..processes.env_servers import EnvServers
from ..processes.machine import own_cpus

_MEASUREMENTS = 3


@dataclass
class EnvSpeed:
    """Agent steps a second of all environments together; a step is 4 emulator frames."""

    game: str
    num_envs: int
    threads: int
    """of each process"""
    processes: int
    """1 if the benchmark's own plays"""
    steps_per_second: float


def bench_env(config: BenchEnvConfig) -> Iterator[EnvSpeed]:
    """Time every game with every number of environments and threads, or processes of one thread each, under
    the protocol paper-code.

    Raises UsageError for a game or a number that cannot be, ChildDied.
    """
    require(config, "num_envs", "threads", "processes", least=1)
    require_positive(config, "seconds")
    cores, asked = available_cores(), config.threads or config.processes
    threads = config.threads if asked else tuple(sorted({1, cores}))
    processes = config.processes if asked or cores == 1 else (cores,)
    players = [*((count, 1) for count in threads), *((1, count) for count in processes)]
    try:
        games = [canonical_game(name) for name in config.games]
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not games or not config.num_envs:
        raise UsageError("nothing to measure: give --games and --num-envs")
    if max(config.num_envs) < min(map(max, players)):
        flag, least = ("threads", min(threads)) if threads else ("processes", min(processes))
        raise UsageError(f"--num-envs {max(config.num_envs)}: give at least as many as --{flag} {least}")
    for game in games:
        for num_envs in config.num_envs:
            for each, count in players:
                if max(each, count) <= num_envs:
                    yield EnvSpeed(
                        game, num_envs, each, count, _speed(game, num_envs, each, count, config.seconds)
                    )


def _speed(game: str, num_envs: int, threads: int, processes: int, seconds: float) -> float:
    make = partial(make_vector_env, game, num_threads=threads)
    with closing(_make(make, num_envs, processes)) as env:
        env.reset(seed=0)
        return statistics.median(emulation_speed(env, seconds / _MEASUREMENTS) for _ in range(_MEASUREMENTS))


def _make(make: Callable[..., VectorEnv], num_envs: int, processes: int) -> VectorEnv:
    """Make environments for this process, or for several as an actor beside a GPU has them."""
    if processes == 1:
        return make(num_envs=num_envs)
    return process_envs(EnvServers(make, num_envs, processes, cpus=own_cpus(processes)), copy=False)[0]


def emulation_speed(env: VectorEnv, seconds: float) -> float:
    """Measure the agent steps a second of environments that have been reset, with random actions."""
    choices = env.single_action_space.n  # type: ignore[attr-defined]
    # Chosen beforehand: drawing actions is not what is measured.
    actions = np.random.default_rng(0).integers(choices, size=(64, env.num_envs))
    steps, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        env.step(actions[steps % len(actions)])
        steps += 1
    return steps * env.num_envs / passed
