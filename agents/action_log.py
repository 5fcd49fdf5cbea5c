"""Restore a deterministic environment by replaying its seeds and actions."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class ActionLog(VectorWrapper):
    """Records seeds and actions of the games under way, so that they can be saved and restored.

    Emulators and third-party environments cannot be cloned, but they can be replayed. Each game after an
    environment's first begins from a seed of its own, so that a replay needs only the actions since then: two
    bytes a step and environment. Where single environments cannot be reset (`metadata["reset_mask"]`), it
    needs all actions since the last reset.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._restarts = bool(env.metadata.get("reset_mask"))
        self._begin(0)

    def _begin(self, seed: int) -> None:
        self._seed = seed
        self._games = np.zeros(self.num_envs, np.int64)
        """Index of each environment's current game since the last reset of all: int64 `[B]`."""
        self._ages = np.zeros(self.num_envs, np.int64)
        """Number of steps of each current game: int64 `[B]`."""
        self._actions: deque[NDArray[np.int16]] = deque()

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if not isinstance(seed, int):
            raise ValueError(
                "an ActionLog must be reset with an integer seed: without it nothing can be repeated"
            )
        self._begin(seed)
        return self.env.reset(seed=seed)

    def step(self, actions: NDArray[Any]) -> Step:
        observation, reward, terminated, truncated, info = self._step(actions)
        over = info.get("_game_return")
        if self._restarts and over is not None and over.any():
            self._games += over
            observation, began = self._restart(over)
            info = {**info, **{key: began[key] for key in ("action_mask",) if key in began}}
        while len(self._actions) > np.max(self._ages):
            self._actions.popleft()
        return observation, reward, terminated, truncated, info

    def _step(self, actions: NDArray[Any]) -> Step:
        self._actions.append(np.array(actions, dtype=np.int16))
        self._ages += 1
        return self.env.step(actions)

    def _restart(self, rows: NDArray[np.bool_]) -> tuple[Any, dict[str, Any]]:
        """Begin the current game of `rows`; return the observations and infos of all environments."""
        seeds: Any = [0] * self.num_envs  # its type omits lists, but every environment takes them
        for row in np.flatnonzero(rows).tolist():
            sequence = np.random.SeedSequence([self._seed, row, int(self._games[row])])
            seeds[row] = int(sequence.generate_state(1)[0] >> 1)
        self._ages[rows] = 0
        return self.env.reset(seed=seeds, options={"reset_mask": rows})

    def state_dict(self) -> dict[str, Any]:
        actions = np.stack(self._actions) if self._actions else np.zeros((0, self.num_envs), np.int16)
        return {
            "seed": self._seed,
            "games": torch.from_numpy(self._games.copy()),
            "ages": torch.from_numpy(self._ages.copy()),
            "actions": torch.from_numpy(actions),
        }

    def replay(self, state: dict[str, Any]) -> Any:
        """Begin the recorded games, repeat their actions and return the observation they lead to."""
        actions = state["actions"].numpy()
        observation, info = self.reset(seed=state["seed"])
        if "games" not in state:  # an earlier version had one seed for all games since the reset
            state = {**state, "games": torch.from_numpy(self._games), "ages": torch.tensor(len(actions))}
        self._games = state["games"].numpy().copy()
        starts = len(actions) - state["ages"].numpy()
        for step in range(len(actions) + 1):
            begins = (starts == step) & (self._games > 0)
            if begins.any():
                observation, info = self._restart(begins)
            if step < len(actions):
                chosen = actions[step].astype(np.int64)
                if "action_mask" in info:  # actions before this game's start may be illegal in it
                    chosen = np.where(starts > step, info["action_mask"].argmax(1), chosen)
                observation, *_, info = self._step(chosen)
        return observation
