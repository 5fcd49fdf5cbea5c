"""Unrolls are cut into shards: some columns of an unroll each, with all of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import TrainConfig


@dataclass(frozen=True)
class Sharding:
    """Sizes of shards, and how many make an unroll or a batch."""

    columns: int
    """columns of a shard"""
    per_unroll: int
    """shards of an unroll"""
    per_update: int
    """shards that each learner takes for an update"""


def sharding(config: TrainConfig) -> Sharding:
    """Shard the unrolls of a run. Raises ValueError if they do not fit the learners' shares of a batch."""
    share, rest = divmod(config.batch_size, config.num_learners)
    if rest:
        raise ValueError(
            f"--num-learners {config.num_learners}: it must divide --batch-size {config.batch_size}"
        )
    columns = min(config.num_envs, share)
    if config.num_envs % columns or share % columns:
        raise ValueError(
            f"--num-envs {config.num_envs} and {share} columns for each of {config.num_learners} learners: "
            "one must be a multiple of the other"
        )
    return Sharding(columns, config.num_envs // columns, share // columns)
