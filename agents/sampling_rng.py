"""The random numbers that choose an actor's actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class EnvShard(NamedTuple):
    """Which of a run's environments an actor steps."""

    indices: NDArray[np.int64]
    """int64 `[B]`"""
    total: int
    """environments of the run"""


@dataclass(frozen=True)
class ShardedRng:
    """An actor's columns of the numbers that `generator` draws for all environments of a run.

    Actors of one run that draw from equal generators choose for each environment as a single actor of all
    would, however many of them there are.
    """

    generator: torch.Generator
    columns: EnvShard


Rng = torch.Generator | ShardedRng


def exponential(numbers: Tensor, rng: Rng | None) -> Tensor:
    """Fill `[B, A]` with draws from Exp(1), of torch's own generator if there is no `rng`; return it."""
    if not isinstance(rng, ShardedRng):
        return numbers.exponential_(generator=rng)
    of_all = numbers.new_empty(rng.columns.total, numbers.shape[1]).exponential_(generator=rng.generator)
    return numbers.copy_(of_all[rng.columns.indices])
