"""`deltabeast bench env`: the speed of the games alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from gymnasium.vector import VectorEnv

from ...envs import available_cores, canonical_game, make_vector_env
from ..config import BenchEnvConfig
from ..errors import UsageError, require, require_positive

_MEASUREMENTS = 3


@dataclass
class EnvSpeed:
    """Agent steps a second of all environments together; a step is 4 emulator frames."""

    game: str
    num_envs: int
    threads: int
    steps_per_second: float


def bench_env(config: BenchEnvConfig) -> Iterator[EnvSpeed]:
    """Time every game with every number of environments and threads, under the protocol paper-code.

    Raises UsageError for a game or a number that cannot be.
    """
    require(config, "num_envs", "threads", least=1)
    require_positive(config, "seconds")
    threads = config.threads or tuple(sorted({1, available_cores()}))
    try:
        games = [canonical_game(name) for name in config.games]
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not games or not config.num_envs:
        raise UsageError("nothing to measure: give --games and --num-envs")
    if max(config.num_envs) < min(threads):
        raise UsageError(
            f"--num-envs {max(config.num_envs)}: give at least as many as --threads {min(threads)}"
        )
    for game in games:
        for num_envs in config.num_envs:
            for count in threads:
                if count <= num_envs:
                    yield EnvSpeed(game, num_envs, count, _speed(game, num_envs, count, config.seconds))


def _speed(game: str, num_envs: int, threads: int, seconds: float) -> float:
    with closing(make_vector_env(game, num_envs=num_envs, num_threads=threads)) as env:
        env.reset(seed=0)
        return statistics.median(emulation_speed(env, seconds / _MEASUREMENTS) for _ in range(_MEASUREMENTS))


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
