"""Any Gymnasium environment with discrete actions, in the form the agents expect."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from .action_table import action_table
from .autoreset import DelayedEnds, in_same_step
from .checks import Seeds, check_actions, finite, reset_seed, rows_to_reset
from .episodes import EpisodeStatistics
from .masks import ActionMasks, Flags
from .observations import ObservationReader, Reading
from .rescue import Rescue, close

Observations = npt.NDArray[Any]
Actions = npt.NDArray[np.int64]
Step = tuple[Observations, npt.NDArray[np.float32], Flags, Flags, dict[str, Any]]


class GymnasiumEnvs(VectorEnv[Observations, Actions, npt.NDArray[Any]]):
    """A same-step vector environment with plain observations, numbered actions, and returns and lengths of
    episodes in its infos.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        left_out: Sequence[str] = (),
        observations: Reading | Literal["auto"] = "auto",
        name: str = "the environment",
    ) -> None:
        """`env` has any autoreset mode, and numbers or a flat tuple of them as observations; `left_out` names
        parts of the environment's observations that it does not show; `name` is for messages.
        """
        self._env = in_same_step(env)
        self._name = name
        self.protocol = None
        self.left_out = tuple(left_out)
        self.num_envs = env.num_envs
        self.metadata = {
            **env.metadata,
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "reset_mask": isinstance(env, SyncVectorEnv),
        }
        self._actions = action_table(env.single_action_space)
        self._reader = ObservationReader(env.single_observation_space, observations)
        if 0 in (self._reader.space.shape or ()):
            raise ValueError(f"its observations, {env.single_observation_space}, hold no number to read")
        self.reading = self._reader.reading
        self._rescue = Rescue(env, self._name)
        space = env.observation_space
        self._shapes = [part.shape for part in (space.spaces if isinstance(space, spaces.Tuple) else [space])]
        self.single_action_space = spaces.Discrete(len(self._actions))
        self.single_observation_space = self._reader.space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._statistics = EpisodeStatistics(self.num_envs)
        self._none = np.zeros(self.num_envs, bool)
        self._lacks_last = False
        self._masks = ActionMasks(self.num_envs, len(self._actions))

    @property
    def action_meanings(self) -> tuple[str, ...]:
        """Names of the actions, from the environment's `get_action_meanings`; empty if it has none."""
        first = next(iter(getattr(self._env.unwrapped, "envs", ())), None)
        try:
            return tuple(map(str, first.unwrapped.get_action_meanings()))  # type: ignore[union-attr]
        except Exception:  # foreign code, for names alone
            return ()

    def reset(
        self, *, seed: Seeds | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        rows = rows_to_reset(options, self.num_envs)
        given = None if seed is None else reset_seed(self._env, seed)
        with self._rescue:
            obs, shown = self._env.reset(seed=given, options=None if options is None else dict(options))
            plain, masks = self._read(obs), self._masks.read(shown, rows)
        infos = self._statistics.reset(rows)
        return plain, {**infos, "forced": self._none.copy(), **masks}

    def step(self, actions: npt.ArrayLike) -> Step:
        checked = check_actions(actions, self.num_envs, len(self._actions))
        with self._rescue:
            obs, raw_rewards, terminated, truncated, shown = self._env.step(self._actions[checked])
            plain, rewards, masks = self._read(obs), finite(raw_rewards), self._masks.read(shown)
            last = self._last_observations(truncated & ~terminated, shown)
        done = terminated | truncated
        forced = self._env.resetting if isinstance(self._env, DelayedEnds) else self._none
        infos = self._statistics.update(rewards, ~forced, self._none, done, done)
        infos |= {"forced": forced.copy(), **masks, **last}
        if self._reader.notes or self._masks.notes:
            infos |= self._notes()
        return plain, rewards.astype(np.float32), terminated, truncated, infos

    def _last_observations(self, rows: npt.NDArray[np.bool_], shown: dict[str, Any]) -> dict[str, Any]:
        """Return the infos about episodes that were truncated in `rows`, given those of the environment."""
        if not np.count_nonzero(rows):
            return {}
        if "final_obs" not in shown:
            if not self._lacks_last:
                self._reader.notes.append(
                    "its infos lack final_obs where an episode is truncated, which is learned from as if it "
                    "had terminated"
                )
            self._lacks_last = True
            return {}
        each = [shown["final_obs"][row] for row in np.flatnonzero(rows)]
        space = self._env.single_observation_space
        room: Any = create_empty_array(space, len(each))
        last = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)
        last[rows] = self._reader(concatenate(space, each, room))
        return {"final_obs": last, "_final_obs": rows}

    def _notes(self) -> dict[str, Any]:
        """Take what there is to say of observations and masks, once."""
        notes = self._reader.notes + self._masks.notes
        self._reader.notes, self._masks.notes = [], []
        return {"notes": [f"{self._name}: {note}" for note in notes]}

    def _read(self, observations: Any) -> Observations:
        values = observations if isinstance(observations, tuple) else (observations,)
        for value, shape in zip(values, self._shapes, strict=True):
            if value.shape != shape:
                raise ValueError(f"observations of shape {value.shape} where its space says {shape}")
        return self._reader(observations)

    def close_extras(self, **kwargs: Any) -> None:
        close(self._env, self._name)
