"""Which parts of an environment's observations are numbers."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from .declared import in_dtype

Space = spaces.Space[Any]
Path = tuple[Any, ...]
"""Keys that lead from an observation to one part of it."""

_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class NumberParts(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the parts of an environment's observations that are numbers, as one flat tuple."""

    left_out: tuple[str, ...]
    """what else there is: text and whatever has no fixed size, each part as its name and its kind"""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._paths, self.observation_space, self.left_out = _numbers(env.observation_space)
        # Gymnasium's vector environments would cast other integers, and wrap those that do not fit.
        self._integers = [
            (i, part, part.dtype)
            for i, part in enumerate(self.observation_space)
            if isinstance(part, spaces.Box) and part.dtype.kind in "iu"
        ]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if truncated:  # the reset that follows may write into it
            observation = deepcopy(observation)
        return self.observation(observation), reward, terminated, truncated, info

    def observation(self, observation: Any) -> tuple[Any, ...]:
        # The usual case, in which a look-up would take longer than many a step, comes first.
        parts = (observation,) if self._paths == [()] else tuple(_at(p, observation) for p in self._paths)
        for i, part, dtype in self._integers:
            if getattr(parts[i], "dtype", None) is not dtype:
                parts = (*parts[:i], in_dtype(part, parts[i]), *parts[i + 1 :])
        return parts


class VectorNumberParts(VectorWrapper[Any, Any, Any]):
    """Does the same for all environments of a vector at once."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._paths, self.single_observation_space, self.left_out = _numbers(env.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._numbers(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "_final_obs" in infos:
            final = np.full(self.num_envs, None, object)
            for row in np.flatnonzero(infos["_final_obs"]):
                final[row] = self._numbers(infos["final_obs"][row])
            infos = {**infos, "final_obs": final}
        return self._numbers(observations), rewards, terminated, truncated, infos

    def _numbers(self, observation: Any) -> tuple[Any, ...]:
        return tuple(_at(path, observation) for path in self._paths)


def _numbers(space: Space) -> tuple[list[Path], spaces.Tuple[Any], tuple[str, ...]]:
    """Return the paths of the parts that are numbers, their spaces, and the names of what is left out."""
    parts = _leaves(space)
    numbers = [(path, part) for path, part in parts if isinstance(part, _NUMBERS)]
    if not numbers:
        raise ValueError(
            f"observations of {space} are no numbers of a fixed size; wrap the environment so that they are"
        )
    left_out = (
        f"{'.'.join(map(str, path))} ({type(part).__name__})"
        for path, part in parts
        if not isinstance(part, _NUMBERS)
    )
    return [path for path, _ in numbers], spaces.Tuple([part for _, part in numbers]), tuple(left_out)


def _leaves(space: Space, path: Path = ()) -> list[tuple[Path, Space]]:
    """List the parts of nested Dict and Tuple spaces, in Gymnasium's order, each with its path."""
    children: Iterable[tuple[Any, Space]]
    if isinstance(space, spaces.Dict):
        children = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
    else:
        return [(path, space)]
    return [leaf for key, child in children for leaf in _leaves(child, (*path, key))]


def _at(path: Path, observation: Any) -> Any:
    for key in path:
        observation = observation[key]
    return observation
