"""Convert an environment's observations to what agents read: one image or one vector of its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, create_empty_array

Array = npt.NDArray[Any]
Space = spaces.Space[Any]
Choices = list[npt.NDArray[np.int64]]
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

    def observation(self, observation: Any) -> tuple[Any, ...]:
        if self._paths == [()]:  # the usual case, in which a look-up would take longer than many a step
            return (observation,)
        return tuple(_at(path, observation) for path in self._paths)


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


class PlainObservations:
    """Joins the parts of observations: uint8 images `[N, C, H, W]` or float32 vectors `[N, D]`.

    One image: where there are images, all of one size, and beside them nothing but discrete parts, which add
    a plane for each of their values, white for the one they have. Else a vector: everything side by side,
    discrete parts one-hot, images from 0 to 1.
    """

    def __init__(self, space: Space) -> None:
        """`space`: numbers, or a flat tuple of them."""
        self._parts = list(space.spaces) if isinstance(space, spaces.Tuple) else [space]
        sizes = {_image_shape(part)[1:] for part in self._parts if _is_image(part)}
        planes = all(_is_image(part) or not isinstance(part, spaces.Box) for part in self._parts)
        self._size = sizes.pop() if len(sizes) == 1 and planes else None
        self._choices = [_choices(part) for part in self._parts]
        shape = self(create_empty_array(space, n=1, fn=np.zeros)).shape[1:]
        self.space = (
            spaces.Box(-np.inf, np.inf, shape, np.float32)
            if self._size is None
            else spaces.Box(0, 255, shape, np.uint8)
        )

    def __call__(self, observations: Any) -> Array:
        values = observations if isinstance(observations, tuple) else (observations,)
        joined = [
            _vector(part, choices, value) if self._size is None else _planes(part, choices, value, self._size)
            for part, choices, value in zip(self._parts, self._choices, values, strict=True)
        ]
        return joined[0] if len(joined) == 1 else np.concatenate(joined, axis=1)


def _numbers(space: Space) -> tuple[list[Path], Space, tuple[str, ...]]:
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


def _is_image(part: Space) -> bool:
    """Return whether a part has three axes and integers from 0 to 255, or booleans."""
    if not isinstance(part, spaces.Box) or len(part.shape) != 3 or part.dtype.kind not in "bui":
        return False
    return bool(part.low.min() >= 0 and part.high.max() <= 255)


def _image_shape(part: Space) -> tuple[int, ...]:
    """Return (C, H, W)."""
    assert part.shape is not None
    return part.shape if _channels_first(part.shape) else (part.shape[2], *part.shape[:2])


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether channels come first: two equal axes are height and width; where that does not tell, an
    image has fewer channels than columns, or else is taken as [H, W, C].
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    return first < last


def _planes(part: Space, choices: Choices, values: Array, size: tuple[int, ...]) -> Array:
    """Return `[N, planes, H, W]` for an image or a discrete part, multiplied by the integer that brings the
    highest possible value nearest to 255 from below."""
    if isinstance(part, spaces.Box):
        image = values if _channels_first(part.shape) else np.moveaxis(values, -1, 1)
        return image.astype(np.uint8) * np.uint8(255 // _highest(part))
    chosen = _one_hot(choices, values)[:, :, None, None].astype(np.uint8) * np.uint8(255)
    return np.broadcast_to(chosen, (*chosen.shape[:2], *size))


def _vector(part: Space, choices: Choices, values: Array) -> Array:
    """Return float32 `[N, numbers]`."""
    if not isinstance(part, spaces.Box):
        return _one_hot(choices, values).astype(np.float32)
    flat = values.reshape(len(values), -1).astype(np.float32)
    return flat / np.float32(_highest(part)) if _is_image(part) else flat


def _highest(image: spaces.Box) -> int:
    return max(1, int(np.max(image.high)))


def _choices(part: Space) -> Choices:
    """List the values of each choice that a discrete part consists of; none for the bits of MultiBinary."""
    if isinstance(part, spaces.Box | spaces.MultiBinary):
        return []
    assert isinstance(part, spaces.Discrete | spaces.MultiDiscrete)
    counts = np.ravel(part.nvec if isinstance(part, spaces.MultiDiscrete) else part.n)
    return [
        np.arange(start, start + count) for start, count in zip(np.ravel(part.start), counts, strict=True)
    ]


def _one_hot(choices: Choices, values: Array) -> npt.NDArray[np.bool_]:
    """Return booleans `[N, all values of all choices]`; without choices values are bits."""
    columns = values.reshape(len(values), -1)
    if not choices:
        return columns.astype(bool)
    hot = [column[:, None] == choice for column, choice in zip(columns.T, choices, strict=True)]
    return np.concatenate(hot, axis=1)
