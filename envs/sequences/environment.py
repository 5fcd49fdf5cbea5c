"""A task's sequences as a Gymnasium environment: a token an observation, an answer an action."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from .sequences import NO_TARGET, Integers, Task


class SequenceEnv(gymnasium.Env[Integers, np.int64]):
    """One sequence an episode; a right answer to the token just shown is worth 1, where one is asked for.

    Observations are a token's symbols. The answer `unpaid` is worth nothing, right or not.
    """

    def __init__(self, task: Task, unpaid: int = NO_TARGET) -> None:
        self.observation_space = spaces.MultiDiscrete(list(task.symbols))
        self.action_space = spaces.Discrete(task.classes)
        self._task, self._unpaid = task, unpaid

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        super().reset(seed=seed)
        self._sequence, self._step = self._task.sample(self.np_random, 1), 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Integers, float, bool, bool, dict[str, Any]]:
        asked = self._sequence.target[self._step, 0]
        reward = float(asked not in (NO_TARGET, self._unpaid) and action == asked)
        done = self._step + 1 == len(self._sequence.tokens)
        self._step += not done
        return self._seen(), reward, done, False, {}

    def _seen(self) -> Integers:
        return np.array(np.unravel_index(self._sequence.tokens[self._step, 0], self._task.symbols))
