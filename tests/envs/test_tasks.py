"""Tasks of memory: what frames their returns is right."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import deltabeast.envs
from deltabeast.envs import ABILITIES, find_task, make_vector_env, task_normalized

with (Path(deltabeast.envs.__file__).parent / "tasks.csv").open() as file:
    TASKS = [row["task"] for row in csv.DictReader(file)]
MODULES = {"popgym": "popgym:", "MiniGrid": "minigrid:", "deltabeast": ""}


def env_id(task: str) -> str:
    return next(module for name, module in MODULES.items() if task.startswith(name)) + task


def test_returns_are_scaled_from_random_play_to_the_best() -> None:
    task = find_task("popgym:popgym-RepeatFirstEasy-v0")
    assert task is not None and task == find_task("popgym-RepeatFirstEasy-v0") and task.ability == "hold"
    assert [task_normalized("popgym-RepeatFirstEasy-v0", score) for score in (-0.5, 0.25, 1)] == [0, 0.5, 1]
    assert find_task("CartPole-v1") is None is task_normalized("CartPole-v1", 3)


def test_what_each_task_asks_for_is_explained() -> None:
    asked = {task.ability for name in TASKS if (task := find_task(name))}
    assert asked == set(ABILITIES)


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_random_play_is_as_listed(task: str, seed: int) -> None:
    env = make_vector_env(env_id=env_id(task), num_envs=20)
    returns = np.array(list(random_returns(env, 300, seed)))
    env.close()
    known = find_task(task)
    assert known is not None and returns.max() <= known.best + 1e-6
    assert abs(returns.mean() - known.random) < 5 * returns.std() / len(returns) ** 0.5 + 0.01


def random_returns(env: deltabeast.envs.vector_env.VectorEnv, episodes: int, seed: int) -> Iterator[float]:
    """Of the first games of every environment, so that short ones do not count for more."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    left = np.full(env.num_envs, episodes // env.num_envs)
    while left.any():
        *_, infos = env.step(rng.integers(env.single_action_space.n, size=env.num_envs))
        ended = infos["_game_return"] & (left > 0)
        left -= ended
        yield from infos["game_return"][ended]
