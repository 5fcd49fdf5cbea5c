"""Learning from a batch more than once, in minibatches of environments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from .unroll import Unroll


def minibatches(
    batch: Unroll, passes: int = 1, size: int | None = None, seed: tuple[int, ...] = (0,)
) -> Iterator[Unroll]:
    """Yield each pass's minibatches `[T, size]` of a batch `[T, B]`: environments in an order of its own.

    As in PPO (Schulman et al. 2017, Algorithm 1) for recurrent agents: whole unrolls are drawn, never single
    steps. V-trace corrects each pass for what the passes before have changed. `size` divides B, by default it
    is B; one pass over the whole batch is the batch itself. Equal seeds give equal orders. The last one has
    as its `counted` what counts of the batch, the others None.

    Raises ValueError if `size` does not divide B.
    """
    size = size or batch.num_envs
    if batch.num_envs % size:
        raise ValueError(
            f"minibatches of {size} trajectories: give a divisor of the batch's {batch.num_envs}"
        )
    counted = batch if batch.counted == "itself" else batch.counted
    rng = np.random.default_rng(seed)
    for passes_left in reversed(range(passes)):
        if size == batch.num_envs:
            yield replace(batch, counted=None) if passes_left else batch
            continue
        order = torch.from_numpy(rng.permutation(batch.num_envs))
        for start in range(0, batch.num_envs, size):
            last = not passes_left and start + size == batch.num_envs
            yield replace(select(batch, order[start : start + size]), counted=counted if last else None)


def select(batch: Unroll, envs: torch.Tensor) -> Unroll:
    """Return the unrolls of some environments, int64 `[n]`, with all episodes."""
    index = envs.to(batch.action.device)
    part = batch.map(lambda dim, x: x.index_select(dim, index))
    return replace(
        part,
        truncations=batch.truncations and batch.truncations.select(envs),
        origin=None if batch.origin is None else batch.origin[envs],
        replayed=None if batch.replayed is None else batch.replayed[envs],
    )
