"""Sampling actions from a policy, and the random numbers for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class EnvShard(NamedTuple):
    """The environments of a run that one actor steps."""

    indices: NDArray[np.int64]
    """Indices of the actor's environments among the run's: int64 `[B]`."""
    total: int
    """Number of environments of the run."""


@dataclass(frozen=True)
class ShardedRng:
    """An actor's share of the numbers that `generator` draws for all environments of a run.

    With equal generators each environment draws the same numbers, however they are split across actors.
    """

    generator: torch.Generator
    shard: EnvShard


Rng = torch.Generator | ShardedRng


def exponential(numbers: Tensor, rng: Rng | None) -> Tensor:
    """Fill `[B, A]` with draws from Exp(1), of torch's own generator if there is no `rng`; return it."""
    if not isinstance(rng, ShardedRng):
        return numbers.exponential_(generator=rng)
    of_all = numbers.new_empty(rng.shard.total, numbers.shape[1]).exponential_(generator=rng.generator)
    return numbers.copy_(of_all[rng.shard.indices])


def sample(logits: Tensor, rng: Rng | None) -> Tensor:
    """Sample actions `[B]` from policies, logits `[B, A]`: argmax of p_i / e_i with e_i ~ Exp(1), which is
    the Gumbel-max trick without its logarithms."""
    return (logits.softmax(-1) / exponential(torch.empty_like(logits), rng)).argmax(-1)
