"""Returns and lengths of lives and games, for a batch of environments."""

from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
Rewards = npt.NDArray[np.float64]


class _Totals:
    """Running return, length and score-wrap flag of each environment's current episode."""

    def __init__(self, name: str, num_envs: int) -> None:
        self._name = name
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._wrapped = np.zeros(num_envs, bool)
        nothing = np.zeros(num_envs, np.float32), np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
        for array in nothing:
            array.flags.writeable = False
        self._nothing_over = self._infos(*nothing)

    def update(self, rewards: Rewards, acted: Flags, wraps: Flags, over: Flags) -> dict[str, Any]:
        self._return += rewards
        self._length += acted
        self._wrapped |= wraps
        if not np.count_nonzero(over):  # in nearly all steps, and small environments take less time than this
            return self._nothing_over
        # A return that misses a wrapped score is wrong; an episode in which the agent never acted is none.
        valid = over & ~self._wrapped & (self._length > 0)
        returns = np.where(valid, self._return, 0.0).astype(np.float32)
        infos = self._infos(returns, np.where(valid, self._length, 0), valid)
        self.forget(over)
        return infos

    def _infos(self, returns: npt.NDArray[np.float32], lengths: npt.NDArray[np.int64], valid: Flags) -> Any:
        scores = {f"{self._name}_return": returns, f"{self._name}_length": lengths}
        return {**scores, **{f"_{name}": valid for name in scores}}

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
        self._life, self._game = _Totals("life", num_envs), _Totals("game", num_envs)

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
            **self._life.update(rewards, acted, wraps, life_over),
            **self._game.update(rewards, acted, wraps, game_over),
            "score_wraps": wraps.astype(np.int64),
        }
