"""A vector environment that counts, so that a test can tell what was recorded when."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class CountingEnv(VectorEnv):
    """Environment i shows (i, episode, step) and ends its episodes after `lengths[i]` steps.

    A reset of single environments makes their seed, modulo 100, the number of the episode.
    The reward of a step is 100 i + 10 episode + step + action / 10. Step 0 of an episode is forced in
    environment 0.
    """

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.num_envs = len(lengths)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "reset_mask": True}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.lengths = np.array(lengths)
        self.actions: list[np.ndarray] = []

    def _observe(self) -> np.ndarray:
        return np.stack([np.arange(self.num_envs), self.episode, self.count], 1).astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if options is not None:
            rows = options["reset_mask"]
            self.episode[rows] = np.array(seed)[rows] % 100
            self.count[rows] = 0
            self.total[rows] = 0
            return self._observe(), {}
        self.seed = seed
        self.episode = np.zeros(self.num_envs, int)
        self.count = np.zeros(self.num_envs, int)
        self.total = np.zeros(self.num_envs)
        return self._observe(), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.actions.append(np.array(actions))
        reward = 100 * np.arange(self.num_envs) + 10 * self.episode + self.count + actions / 10
        forced = (np.arange(self.num_envs) == 0) & (self.count == 0)
        self.count += 1
        self.total += reward
        done = self.count == self.lengths
        info = {
            "game_return": self.total.copy(),
            "_game_return": done,
            "game_length": self.count.copy(),
            "_game_length": done,
            "life_return": self.total.copy(),
            "_life_return": done,
            "forced": forced,
            "score_wraps": np.zeros(self.num_envs, int),
        }
        self.total[done] = 0
        self.episode[done] += 1
        self.count[done] = 0
        return self._observe(), reward.astype(np.float32), done, np.zeros_like(done), info
