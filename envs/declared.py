"""Validate an environment's observations against the space that it declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .brief import brief

Array = npt.NDArray[Any]


class BadObservation(ValueError):
    """An environment showed what agents cannot read as it is; the message says what, and what it declares."""


class Declared:
    """The values that one part of an environment's observations may have."""

    def __init__(self, part: spaces.Space[Any], exact: bool, margin: float = 0.0) -> None:
        """exact: whether any others are refused, since a cast or an encoding would change them; else only
        those that are not finite are. `margin` is added to the bounds on both sides.
        """
        self._part, self._dtype = part, np.dtype(part.dtype)
        self._exact = exact
        low, high = (bound.astype(np.result_type(bound, np.float32)) for bound in _bounds(part))
        least, most = _finite(self._dtype)
        if self._dtype.kind == "f":
            low, high = (np.clip(bound, least, most) for bound in (low - margin, high + margin))
        self._limits: tuple[Any, Any] = low, high
        self._uniform = low.size > 0 and all((bound == bound.flat[0]).all() for bound in (low, high))
        if self._uniform:
            self._limits = low.flat[0], high.flat[0]
        allows_all = (low <= least).all() and (high >= most).all()
        self._cannot_be_outside = self._dtype.kind != "f" and bool(allows_all)

    def check(self, values: Array) -> str | None:
        """Return what there is to say of values `[N, ...]`: of the first outside the bounds, once.

        Raises BadObservation for those that are refused.
        """
        if (self._cannot_be_outside and values.dtype == self._dtype) or self._inside(values):
            return None
        outside = ~((values >= self._limits[0]) & (values <= self._limits[1]))
        wrong = ~(np.abs(values) <= _FLOAT32.max)
        if self._exact or wrong.any():
            value = values[wrong if wrong.any() else outside][0].item()
            raise BadObservation(
                f"an observation holds {value}, and its space is {brief(self._part, 100)}; "
                + (_NOT_FINITE if wrong.any() else _CORRECT)
            )
        self._limits, self._uniform = _finite(self._dtype), True
        value = values[outside][0].item()
        return f"an observation holds {value}, outside {brief(self._part, 100)}; it is read as it is"

    def _inside(self, values: Array) -> bool:
        low, high = self._limits
        if self._uniform:  # comparisons with NaN are false
            return bool(low <= values.min() and values.max() <= high)
        return np.count_nonzero((values >= low) & (values <= high)) == values.size


_FLOAT32 = np.finfo(np.float32)
_CORRECT = "correct the environment, or the space that it declares"
_NOT_FINITE = "agents read finite numbers alone, as float32; correct the environment"


def in_dtype(part: spaces.Space[Any], value: Any) -> Any:
    """Return an observation in its space's integer dtype. Raises BadObservation if that would change it."""
    array = np.asarray(value)
    if array.dtype == part.dtype:
        return value
    with np.errstate(invalid="ignore"):
        cast = array.astype(part.dtype)
    changed = cast != array
    if changed.any():
        shown = array[changed][0].item()
        raise BadObservation(
            f"an observation holds {shown} ({array.dtype}), and its space is {brief(part, 100)}; {_CORRECT}"
        )
    return cast


def _bounds(part: spaces.Space[Any]) -> tuple[Array, Array]:
    """Return the lowest and the highest value of each number of a part."""
    if isinstance(part, spaces.Box):
        return part.low, part.high
    if isinstance(part, spaces.MultiBinary):
        return np.zeros(part.shape, np.int64), np.ones(part.shape, np.int64)
    assert isinstance(part, spaces.Discrete | spaces.MultiDiscrete)
    count = np.asarray(part.nvec if isinstance(part, spaces.MultiDiscrete) else part.n)
    low = np.asarray(part.start)
    return low, low + count - 1


def _finite(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a dtype, of floats the finite ones that agents read."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "f":
        limits = np.finfo(dtype) if dtype.itemsize <= 4 else _FLOAT32
        return limits.min, limits.max
    return np.iinfo(dtype).min, np.iinfo(dtype).max
