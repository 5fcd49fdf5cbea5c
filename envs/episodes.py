"""Returns and lengths of lives and games, for a batch of environments."""

from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
Rewards = npt.NDArray[np.float64]


class _Totals:
    """Running return, length and score-wrap flag of each environment's current episode."""

    def __init__(self, num_envs: int) -> None:
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._wrapped = np.zeros(num_envs, bool)

    def update(self, name: str, rewards: Rewards, acted: Flags, wraps: Flags, over: Flags) -> dict[str, Any]:
        self._return += rewards
        self._length += acted
        self._wrapped |= wraps
        # A return that misses a wrapped score is wrong; an episode in which the agent never acted is none.
        valid = over & ~self._wrapped & (self._length > 0)
        infos = {
            f"{name}_return": np.where(valid, self._return, 0.0).astype(np.float32),
            f"_{name}_return": valid,
            f"{name}_length": np.where(valid, self._length, 0),
            f"_{name}_length": valid.copy(),
        }
        if over.any():
            self.forget(over)
        return infos

    def forget(self, rows: Flags) -> None:
        self._return[rows] = 0.0
        self._length[rows] = 0
        self._wrapped[rows] = False


class EpisodeStatistics:
    """Adds up rewards and steps between the ends of lives and games.

    A life is the agent's episode, from one `done` to the next. `acted` marks the steps whose action was the
    agent's own: only they count in a length. A life ends with its game: `life_over` wherever `game_over`.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._life, self._game = _Totals(num_envs), _Totals(num_envs)

    def reset(self, rows: Flags) -> dict[str, Any]:
        """Forgets what was under way in these, and returns the infos of a reset: nothing has ended."""
        for totals in (self._life, self._game):
            totals.forget(rows)
        nothing = np.zeros(self._num_envs, bool)
        return self.update(np.zeros(self._num_envs), nothing, nothing, nothing, nothing)

    def update(
        self, rewards: Rewards, acted: Flags, wraps: Flags, life_over: Flags, game_over: Flags
    ) -> dict[str, Any]:
        return {
            **self._life.update("life", rewards, acted, wraps, life_over),
            **self._game.update("game", rewards, acted, wraps, game_over),
            "score_wraps": wraps.astype(np.int64),
        }
