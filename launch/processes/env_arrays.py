"""What environments in several processes show, in memory that all of these see."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from ...envs.episodes import EpisodeStatistics
from .nameless import nameless_file

Arrays = dict[str, npt.NDArray[Any]]

EPISODE_INFOS = {
    **{name: array.dtype for name, array in EpisodeStatistics(1).reset(np.ones(1, bool)).items()},
    "forced": np.dtype(bool),
}
"""Infos `[N]` of every environment, with their dtypes."""
_EMULATOR_INFOS = {"lives": np.dtype(np.int32), "game_frames": np.dtype(np.int32)}
"""Those that games have besides."""
_CACHE_LINE = 64
"""Bytes; no two arrays share one."""


class Described(NamedTuple):
    """What environments are, as they say in the process that made them."""

    observation_space: spaces.Box
    action_space: spaces.Discrete
    metadata: dict[str, Any]
    attributes: dict[str, Any]
    """what else those of `make_vector_env` have, by name"""

    @classmethod
    def of(cls, env: VectorEnv[Any, Any, Any]) -> Described:
        names = "action_meanings", "left_out", "protocol", "reading"
        attributes = {name: getattr(env, name) for name in names if hasattr(env, name)}
        assert isinstance(env.single_observation_space, spaces.Box)
        assert isinstance(env.single_action_space, spaces.Discrete)
        return cls(env.single_observation_space, env.single_action_space, env.metadata, attributes)

    @property
    def infos(self) -> dict[str, np.dtype[Any]]:
        """Infos `[N]` that every step has."""
        return EPISODE_INFOS | (_EMULATOR_INFOS if self.attributes.get("protocol") else {})


class Layout:
    """Arrays of N environments in P processes, one behind another in a file: `[N, ...]`, `status` `[P]`."""

    def __init__(self, described: Described, num_envs: int, processes: int) -> None:
        space, bits = described.observation_space, np.dtype(bool)
        each: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            "actions": (np.dtype(np.int64), ()),
            "rewards": (np.dtype(np.float32), ()),
            "terminated": (bits, ()),
            "truncated": (bits, ()),
            "_final_obs": (bits, ()),
            "action_mask": (bits, (int(described.action_space.n),)),
            **{name: (dtype, ()) for name, dtype in described.infos.items()},
            **{name: (space.dtype, space.shape) for name in ("observations", "final_obs")},
        }
        self._kinds = {name: (dtype, (num_envs, *shape)) for name, (dtype, shape) in each.items()}
        self._kinds["status"] = np.dtype(np.uint8), (processes,)

    def new_file(self) -> int:
        """Return the descriptor of a file with room for all. Raises OSError if there is no memory for it."""
        return nameless_file(sum(size for _, _, size in self._places()))

    def arrays(self, file: int) -> Arrays:
        """Map a file's arrays by name. Its descriptor may be closed afterwards."""
        memory = mmap.mmap(file, 0)  # the arrays keep it
        places = {name: begin for name, begin, _ in self._places()}
        return {
            name: np.ndarray(shape, dtype, memory, places[name])
            for name, (dtype, shape) in self._kinds.items()
        }

    def _places(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name of each array, where it begins, and its size, in bytes."""
        begin = 0
        for name, (dtype, shape) in self._kinds.items():
            lines = -(-dtype.itemsize * int(np.prod(shape)) // _CACHE_LINE)
            yield name, begin, lines * _CACHE_LINE
            begin += lines * _CACHE_LINE
