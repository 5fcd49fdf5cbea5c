"""What may be passed to an environment."""

import numpy as np
import numpy.typing as npt


def check_actions(actions: npt.ArrayLike, num_envs: int, num_actions: int) -> npt.NDArray[np.int64]:
    """The actions as [N] int64. ALE would wait for ever after an action that the game does not have."""
    array = np.asarray(actions)
    if array.shape != (num_envs,) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"actions must be {num_envs} integers, got shape {array.shape} of {array.dtype}")
    if array.min() < 0 or array.max() >= num_actions:
        raise ValueError(f"actions must lie in 0..{num_actions - 1}, got {array.min()}..{array.max()}")
    return array.astype(np.int64, copy=False)


def environment_seeds(seed: int, num_envs: int) -> npt.NDArray[np.int64]:
    """One seed for each environment. Counting up from `seed` would give neighbouring seeds the same games."""
    if seed < 0:
        raise ValueError(f"a seed must not be negative, got {seed}")
    state = np.random.SeedSequence(int(seed)).generate_state(num_envs)
    return (state >> 1).astype(np.int64)  # ALE takes 31 bits
