"""What is wrong with a result of `reset` or `step`, in words: asked where reading it failed."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from .brief import brief

_PARTS = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


def misfit_of_result(call: str, result: Any, space: spaces.Space[Any]) -> str | None:
    """Say what of the result of `call`, "reset" or "step", is not what Gymnasium asks for; None if all is."""
    parts = _PARTS[call]
    if not isinstance(result, tuple) or len(result) != len(parts):
        other = "None" if result is None else f"a {type(result).__name__}"
        count = f"{len(result)} values" if isinstance(result, tuple) else other
        return f"{count} instead of {len(parts)}: {', '.join(parts)}"
    if call == "step" and not _is_finite(result[1]):
        remedy = "return float(reward)" if np.ndim(result[1]) else "correct the environment"
        return f"reward {_shown(result[1])}, which is not a finite number; {remedy}"
    return misfit_of_observation(result[0], space)


def misfit_of_observation(value: Any, space: spaces.Space[Any], where: str = "") -> str | None:
    """Say in which part an observation is no numbers in the shape of its space; None if it fits.

    Values out of range are not looked at. `where` is the path that leads to this part, such as "['map']".
    """
    named = f"observation{where}" if where else "an observation"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = dict(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        for key, child in children.items():
            try:
                part = value[key]
            except (LookupError, TypeError):
                return f"{named} without {key!r}: {_shown(value)}"
            if wrong := misfit_of_observation(part, child, f"{where}[{key!r}]"):
                return wrong
        return None
    if space.shape is None or space.dtype is None:  # text, graphs, sequences: nobody reads them
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return f"{named} that is no array, its space is {_shown(space)}: {_shown(value)}"
    if array.shape != space.shape:
        return f"{named} of shape {array.shape}, but its space is {_shown(space)}"
    if array.dtype.kind not in "biuf":
        return f"{named} of {array.dtype}, but its space is {_shown(space)}"
    return None


def _is_finite(reward: Any) -> bool:
    try:
        return np.ndim(reward) == 0 and math.isfinite(reward)
    except (TypeError, ValueError):
        return False


def _shown(value: Any) -> str:
    return brief(repr(value), 120)
