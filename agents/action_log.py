"""Bring any deterministic environment back to where it was: by its seed and its actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class ActionLog(VectorWrapper):
    """Records the actions since the last seeded reset, so that the state can be saved and restored.

    Emulators and third-party environments cannot be cloned, but they repeat themselves. The log holds
    two bytes per agent step; reset with a new seed now and then to keep it, and the replay, short.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._seed: int | None = None
        self._actions: list[NDArray[np.int16]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if not isinstance(seed, int):
            raise ValueError(
                "an ActionLog must be reset with an integer seed: without it nothing can be repeated"
            )
        self._seed = seed
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: NDArray[Any]) -> Step:
        self._actions.append(np.array(actions, dtype=np.int16))
        return self.env.step(actions)

    def state_dict(self) -> dict[str, Any]:
        actions = np.stack(self._actions) if self._actions else np.zeros((0, self.num_envs), np.int16)
        return {"seed": self._seed, "actions": torch.from_numpy(actions)}

    def replay(self, state: dict[str, Any]) -> Any:
        """Reset, repeat the recorded actions and return the observation they lead to."""
        frame, _ = self.reset(seed=state["seed"])
        for actions in state["actions"].numpy():
            frame, *_ = self.step(actions.astype(np.int64))
        return frame
