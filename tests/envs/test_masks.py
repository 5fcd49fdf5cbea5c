"""Masks of actions belong to the observation that an agent is shown with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from deltabeast.envs import EnvironmentFailed, make_vector_env
from deltabeast.envs.conformance import check_vector_env
from deltabeast.envs.gymnasium_env import GymnasiumEnvs


class Masked(gymnasium.Env):
    """Four steps; gives what `masks` lists as mask, from the reset on, and nothing for None."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, masks: Any = None) -> None:
        self.masks = masks or [None, [1, 0, 1], [1, 1, 0], None, [0, 0, 0]]

    def show(self) -> tuple[np.ndarray, dict[str, Any]]:
        mask = self.masks[self.count]
        return np.full(1, self.count, np.float32), {} if mask is None else {"action_mask": np.array(mask)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.show()

    def step(self, action: int) -> tuple[Any, ...]:
        self.count += 1
        observation, info = self.show()
        return observation, 0.0, self.count == 4, False, info


gymnasium.register("deltabeast-test/Masked-v0", Masked)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_mask_is_that_of_the_state_that_is_shown(mode: AutoresetMode, seed: int) -> None:
    makers = [partial(gymnasium.make, "Taxi-v4", max_episode_steps=limit) for limit in (5, 7, 9)]
    env = GymnasiumEnvs(vector := SyncVectorEnv(makers, autoreset_mode=mode))
    observations, infos = env.reset(seed=seed)
    rng, ended, freed = np.random.default_rng(seed), np.zeros(3, bool), 0
    for step in range(60):
        masks = infos["action_mask"]
        assert masks.shape == (3, 6) and masks.dtype == np.bool_
        for row, taxi in enumerate(single.unwrapped for single in vector.envs):
            assert observations[row].argmax() == taxi.s
            if ended[row]:
                assert masks[row].all(), "at the end nothing is chosen"
                freed += 1
            else:
                assert masks[row].tolist() == taxi.action_mask(taxi.s).astype(bool).tolist(), f"step {step}"
                assert not masks[row].all()
        if step % 20 == 13 and mode == AutoresetMode.SAME_STEP:  # begins a game in one of them
            first = np.array([True, False, False])
            observations, infos = env.reset(seed=[step, 0, 0], options={"reset_mask": first})
            continue
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        observations, *_, infos = env.step(actions)
        ended = env._env._ended[0] | env._env._ended[1] if mode == AutoresetMode.NEXT_STEP else ended
    assert (freed > 10) == (mode == AutoresetMode.NEXT_STEP)
    env.close()


def test_masks_may_come_late_and_not_always() -> None:
    env = make_vector_env(env_id="deltabeast-test/Masked-v0", num_envs=2)
    _, infos = env.reset(seed=0)
    assert "action_mask" not in infos
    seen, notes = [], []
    for _ in range(5):
        *_, infos = env.step([0, 0])
        seen.append(infos["action_mask"].astype(int).tolist())
        notes += infos.get("notes", [])
    every = [1, 1, 1]
    assert seen == [[row, row] for row in ([1, 0, 1], [1, 1, 0], every, every, [1, 0, 1])]
    assert len(notes) == 1 and "action_mask is heeded" in notes[0]
    check_vector_env(make_vector_env(env_id="Taxi-v4", num_envs=3), steps=40)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([0, 0, 0], "Masked-v0: its action_mask allows none of the actions"),
        ([1, 2, 0], "others than 0 and 1"),
        ([1, np.nan, 1], "others than 0 and 1"),
    ],
)
def test_masks_that_cannot_be(mask: list[float], message: str) -> None:
    env = make_vector_env(
        env_id="deltabeast-test/Masked-v0", num_envs=1, options={"masks": [[1, 1, 1], mask, None]}
    )
    env.reset(seed=0)
    with pytest.raises(EnvironmentFailed, match=message):
        env.step([0])


@pytest.mark.parametrize("mask", [[1, 0], [[1, 0, 1]], ["a", "b", "c"]])
def test_what_is_no_mask_is_named_once(mask: list[Any]) -> None:
    env = make_vector_env(env_id="deltabeast-test/Masked-v0", num_envs=1, options={"masks": [mask] * 5})
    _, infos = env.reset(seed=0)
    notes = []
    for _ in range(3):
        assert "action_mask" not in infos
        *_, infos = env.step([0])
        notes += infos.get("notes", [])
    assert len(notes) == 1 and "is no array of 3 numbers, and is ignored" in notes[0]
