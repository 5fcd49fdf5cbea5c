"""Checks of actions, seeds and options passed to an environment."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv


def check_actions(actions: npt.ArrayLike, num_envs: int, num_actions: int) -> npt.NDArray[np.int64]:
    """Return the actions as int64 `[N]`. ALE would wait for ever after an action that the game lacks."""
    array = np.asarray(actions)
    if array.shape != (num_envs,) or array.dtype.kind not in "iu":
        raise ValueError(f"actions must be {num_envs} integers, got shape {array.shape} of {array.dtype}")
    # negative ones become the largest
    if np.count_nonzero(array.astype(np.uint64) >= num_actions):
        raise ValueError(f"actions must lie in 0..{num_actions - 1}, got {array.min()}..{array.max()}")
    return array.astype(np.int64, copy=False)


_LARGEST = float(np.finfo(np.float32).max)


def finite(rewards: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the rewards as float64 `[N]`. Raises ValueError for what is no finite number in float32."""
    array = np.asarray(rewards, np.float64)
    if np.count_nonzero(np.abs(array) <= _LARGEST) != array.size:  # faster than `all`, false for nan
        raise ValueError(f"a reward must be a finite number of 32 bits, got {array}")
    return array


Seeds = int | Sequence[int] | npt.NDArray[np.int64]
"""One seed to draw each environment's from, or each environment's own."""


def environment_seeds(seed: Seeds, num_envs: int) -> npt.NDArray[np.int64]:
    """Return one seed per environment. Counting up from `seed` would give neighbouring ones the same games.

    Raises ValueError for a negative seed, or too few or too many of them.
    """
    given = np.asarray(seed, np.int64)
    if np.min(given) < 0:
        raise ValueError(f"a seed must not be negative, got {np.min(given)}")
    if given.ndim == 0:
        state = np.random.SeedSequence(int(given)).generate_state(num_envs)
        return (state >> 1).astype(np.int64)  # ALE takes 31 bits
    if given.shape != (num_envs,):
        raise ValueError(f"got {given.size} seeds for {num_envs} environments")
    return given


def reset_seed(env: VectorEnv[Any, Any, Any], seed: Seeds) -> Any:
    """Return the seed in the form that `env.reset` takes: one each as a list or an array where its annotation
    says so, else one for all, as `VectorEnv.reset` is declared.
    """
    seeds = environment_seeds(seed, env.num_envs)
    reset = env.unwrapped.reset
    try:
        signature = inspect.signature(reset, eval_str=True)
    except NameError:  # a name in somebody's annotations that only a type checker knows
        signature = inspect.signature(reset)
    kind = str(getattr(signature.parameters.get("seed"), "annotation", ""))
    if re.search("list|tuple|Sequence|Iterable", kind, re.IGNORECASE):
        return seeds.tolist()
    if re.search("array", kind, re.IGNORECASE):
        return seeds
    return int(np.random.SeedSequence(seeds.tolist()).generate_state(1)[0] >> 1)


def rows_to_reset(options: dict[str, Any] | None, num_envs: int) -> npt.NDArray[np.bool_]:
    """Return the mask in `options={"reset_mask": [N] bool}`; all rows without it. Raises ValueError."""
    if options is None or "reset_mask" not in options:
        return np.ones(num_envs, bool)
    rows = np.asarray(options["reset_mask"])
    if rows.shape != (num_envs,) or rows.dtype != np.bool_ or not rows.any():
        raise ValueError(f"reset_mask must be {num_envs} booleans, at least one of them true, got {rows}")
    return rows


def check_range(name: str, value: int, least: int, most: int | None = None) -> None:
    """Raise ValueError, which names the option, for a value out of range."""
    if value < least or (most is not None and value > most):
        raise ValueError(
            f"{name} is {value}; give {f'at least {least}' if most is None else f'{least} to {most}'}"
        )
