"""Map action numbers, which agents choose, to the environment's own actions."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

MAX_JOINT_ACTIONS = 1024
"""Beyond this most of a policy's outputs would hardly ever be tried."""


def action_table(space: spaces.Space[Any]) -> npt.NDArray[Any]:
    """Return `[actions, ...]`, whose row i is action i in the environment's own form.

    Several choices at once (MultiDiscrete, MultiBinary) are one joint action, in C order: the last choice
    changes fastest. Raises ValueError for other spaces, and for more than MAX_JOINT_ACTIONS.
    """
    if isinstance(space, spaces.Discrete):
        return np.arange(space.start, space.start + space.n)
    if isinstance(space, spaces.MultiDiscrete):
        choices, start = space.nvec, space.start
    elif isinstance(space, spaces.MultiBinary):
        choices, start = np.full(space.shape, 2), np.zeros(space.shape, np.int64)
    else:
        raise ValueError(
            f"actions of {space} are not supported; choose an environment with a Discrete, MultiDiscrete or "
            "MultiBinary action space, or wrap this one to have one"
        )
    counts = [int(count) for count in choices.ravel()]
    number = math.prod(counts)
    if number > MAX_JOINT_ACTIONS:
        raise ValueError(
            f"{type(space).__name__} actions are {number:,} joint actions, more than {MAX_JOINT_ACTIONS:,}; "
            "wrap the environment to offer fewer"
        )
    rows = np.stack(np.unravel_index(np.arange(number), counts), axis=-1)
    return (rows.reshape(number, *choices.shape) + start).astype(space.dtype)
