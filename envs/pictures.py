"""Which parts of observations are pictures, and how they become channels of bytes."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

SMALLEST = 32
"""Pixels a side from which on an array is taken for a picture by its values alone: a smaller one may as well
be a stack of vectors, or a table of measurements."""


def holds_bytes(part: spaces.Box) -> bool:
    """Return whether a part declares integers from 0 to 255, or booleans."""
    bounds = _bounds(part)
    return part.dtype.kind in "bui" and bounds is not None and bounds[0] >= 0 and bounds[1] <= 255


def is_plain_picture(part: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Return whether version 0.1 took a part for a picture: three axes of bytes."""
    return isinstance(part, spaces.Box) and len(part.shape) == 3 and holds_bytes(part)


def is_picture(part: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Return whether a part is a picture: three axes of bytes, whatever their size; or, with at least 32
    pixels a side, two axes of bytes, numbers whose bounds are 0 and 1 or 0 and 255, or a stack of such.
    """
    if is_plain_picture(part):
        return True
    if not can_be_picture(part) or not (holds_bytes(part) or _bounds(part) in ((0, 1), (0, 255))):
        return False
    return min(channels_shape(part.shape)[1:]) >= SMALLEST


def can_be_picture(part: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Return whether a part has the axes of a picture, and bounds from black to white."""
    return isinstance(part, spaces.Box) and 2 <= len(part.shape) <= 4 and _bounds(part) is not None


def channels_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (channels, height, width) of a picture: [H, W], one with a channel axis, or a stack of those."""
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) == 4:
        channels, height, width = channels_shape(shape[1:])
        return shape[0] * channels, height, width
    first, middle, last = shape
    return (first, middle, last) if _channels_first(shape) else (last, first, middle)


class Channels:
    """Reads pictures `[N, *shape]` as channels of bytes `[N, channels, H, W]`, a stack's first picture first.

    Integers are multiplied by the largest integer factor that keeps them within 255; of other numbers the
    lowest becomes 0 and the highest 255.
    """

    def __init__(self, part: spaces.Box) -> None:
        self._shape = channels_shape(part.shape)
        self._channels_last = len(part.shape) > 2 and not _channels_first(part.shape[-3:])
        low, high = _bounds(part) or (0, 0)
        self._factor = np.uint8(255 // max(1, int(high))) if holds_bytes(part) else None
        self._low, self._unit = low, 255 / max(high - low, 1e-9)

    def __call__(self, values: Array) -> Bytes:
        first = np.moveaxis(values, -1, -3) if self._channels_last else values
        return self._bytes(first).reshape(len(values), *self._shape)

    def _bytes(self, values: Array) -> Bytes:
        if self._factor is not None:
            return values.astype(np.uint8) * self._factor
        shades = (values if self._low == 0 else values - self._low) * self._unit
        return np.rint(shades, out=shades).astype(np.uint8)


def half_a_level(part: spaces.Box) -> float:
    """Return how far beyond its bounds a part's number still rounds to black or white."""
    low, high = _bounds(part) or (0, 0)
    return 0.0 if holds_bytes(part) else 0.499 / 255 * (high - low)


def _bounds(part: spaces.Box) -> tuple[float, float] | None:
    """Return the lowest and the highest value of a part; None where it is empty or they are not finite."""
    if not part.low.size or not (np.isfinite(part.low).all() and np.isfinite(part.high).all()):
        return None
    return float(part.low.min()), float(part.high.max())


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether channels come first: two equal axes are height and width; where that does not tell, an
    image has fewer channels than columns, or else is taken as [H, W, C].
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    return first < last
