"""Convert an environment's observations to what agents read: one picture or one vector of its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .declared import Declared
from .pictures import (
    Channels,
    can_be_picture,
    channels_shape,
    half_a_level,
    is_picture,
    is_plain_picture,
)
from .vectors import Numbers, OneHot

Array = npt.NDArray[Any]
Space = spaces.Space[Any]
Reading = Literal["picture", "vector", "plain"]
"""How observations are read: as one picture, or as one vector whose bounded numbers are scaled; plain is
version 0.1's way, a picture where all is bytes of three axes and else a vector of numbers as they come."""


class ObservationReader:
    """Joins the parts of observations: uint8 pictures `[N, C, H, W]` or float32 vectors `[N, D]`.

    One picture: where there are pictures, all of one size, and beside them only discrete parts, which add a
    channel for each of their values, white for the one they have. Else a vector: everything side by side,
    discrete parts one-hot.
    """

    space: spaces.Box
    """of what comes out: bytes, or floats with infinite bounds for entries that are not scaled"""
    notes: list[str]
    """what there is to say of observations outside their space, for the caller to take"""

    def __init__(self, space: Space, reading: Reading | Literal["auto"] = "auto") -> None:
        """`space`: numbers, or a flat tuple of them. Raises ValueError if it can be no picture but must."""
        self.notes = []
        parts = list(space.spaces) if isinstance(space, spaces.Tuple) else [space]
        size = _common_size(parts, reading)
        self.reading: Reading = "plain" if reading == "plain" else "vector" if size is None else "picture"
        self._declared = [_declared(part, exact=size is not None) for part in parts]
        self._readers: list[Callable[[Array], Array]]
        if size is None:
            vectors = [_as_vector(part, plain=reading == "plain") for part in parts]
            self._readers = list(vectors)
            low = np.concatenate([vector.low for vector in vectors], dtype=np.float32)
            high = np.concatenate([vector.high for vector in vectors], dtype=np.float32)
            self.space = spaces.Box(low, high, dtype=np.float32)
        else:
            self._readers = [_as_channels(part, size) for part in parts]
            blank = [np.zeros((1, *(part.shape or ())), part.dtype) for part in parts]
            count = sum(read(one).shape[1] for read, one in zip(self._readers, blank, strict=True))
            self.space = spaces.Box(0, 255, (count, *size), np.uint8)

    def __call__(self, observations: Any) -> Array:
        """Read observations of N environments. Raises BadObservation for what cannot be read as it is."""
        values = observations if isinstance(observations, tuple) else (observations,)
        for declared, value in zip(self._declared, values, strict=True):
            if note := declared.check(value):
                self.notes.append(note)
        joined = [read(value) for read, value in zip(self._readers, values, strict=True)]
        if len(joined) == 1 and joined[0].dtype == self.space.dtype:
            return joined[0]
        return np.concatenate(joined, axis=1, dtype=self.space.dtype)


def _common_size(parts: list[Space], reading: str) -> tuple[int, int] | None:
    """Return the height and width of the one picture that all parts make, or None where they make none.

    Raises ValueError if they must.
    """
    if reading == "vector":
        return None
    is_one = {"plain": is_plain_picture, "picture": can_be_picture}.get(reading, is_picture)
    sizes = {channels_shape(part.shape or ())[1:] for part in parts if is_one(part)}
    if len(sizes) == 1 and all(is_one(part) or not isinstance(part, spaces.Box) for part in parts):
        return sizes.pop()
    if reading == "picture":
        raise ValueError(
            f"observations of {', '.join(map(str, parts))} make no picture: that has two to four axes, "
            "finite bounds and one size, and discrete parts alone beside it; read them as a vector"
        )
    return None


def _as_channels(part: Space, size: tuple[int, int]) -> Callable[[Array], Array]:
    """Return a reader of a part as channels `[N, C, H, W]`: white is the value that a discrete one has."""
    if isinstance(part, spaces.Box):
        return Channels(part)
    one_hot = OneHot(part)

    def spread(values: Array) -> Array:
        chosen = one_hot(values)[:, :, None, None].astype(np.uint8) * np.uint8(255)
        return np.broadcast_to(chosen, (*chosen.shape[:2], *size))

    return spread


def _as_vector(part: Space, plain: bool) -> Numbers | OneHot:
    if not isinstance(part, spaces.Box):
        return OneHot(part)
    if not plain:
        return Numbers(part)
    return Numbers(part, unit=max(1, int(part.high.max())) if is_plain_picture(part) else 1)


def _declared(part: Space, exact: bool) -> Declared:
    if not isinstance(part, spaces.Box):
        return Declared(part, exact=True)
    return Declared(part, exact, half_a_level(part) if exact else 0.0)
