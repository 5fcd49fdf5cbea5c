"""The first observations of an episode, before the frame stack is full."""

import numpy as np
import numpy.typing as npt


def repeat_first_frame(obs: npt.NDArray[np.uint8], age: npt.NDArray[np.int64]) -> None:
    """Fill the slots before an episode's first frame with copies of it, in place.

    obs: [N, stack, H, W], newest frame last. age: [N], how many frames came after the episode's first.
    """
    stack = obs.shape[1]
    rows = np.flatnonzero(age < stack - 1)
    if rows.size:
        first = stack - 1 - age[rows]
        frames = np.maximum(np.arange(stack), first[:, None])  # [rows, stack]
        obs[rows] = obs[rows[:, None], frames]
