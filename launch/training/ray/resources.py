"""What a run needs: resources, which a cluster has or not, and unrolls cut into shards.

A shard is some columns of an unroll, with all of its steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from rich.console import Console

from ...config import TrainConfig
from ...errors import UsageError, require, require_positive
from ...output import say
from ...runs.options import given_only_for
from ..reuse import minibatch_size, num_replayed
from .cluster import Cluster

_JOINING = 60.0
"""Seconds in which the machines of a cluster that is starting may join it."""


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
    if minibatch_size(config) % config.num_learners:
        raise ValueError(
            f"--num-learners {config.num_learners}: it must divide --minibatch-size {config.minibatch_size}"
        )
    if (replayed := num_replayed(config)) % config.num_learners:
        raise ValueError(
            f"--num-learners {config.num_learners}: it must divide the {replayed} trajectories that "
            f"--replay-ratio {config.replay_ratio:g} adds to each step of the optimizer"
        )
    columns = min(config.num_envs, share)
    if config.num_envs % columns or share % columns:
        raise ValueError(
            f"--num-envs {config.num_envs} and {share} columns for each of {config.num_learners} learners: "
            "one must be a multiple of the other"
        )
    return Sharding(columns, config.num_envs // columns, share // columns)


def check_cluster(config: TrainConfig) -> None:
    """Raise ValueError for options that a cluster cannot keep."""
    if given := given_only_for("local", config):
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{flags}: only with --engine local; with ray say --num-actors")
    require_positive(config, "actor_cpus", "learner_cpus")
    require(config, "actor_gpus", least=0, most=1, why="an actor uses at most one GPU")
    require(config, "num_learners", least=1)
    sharding(config)


def learner_device(config: TrainConfig, total: Mapping[str, float]) -> str:
    """Choose cuda where each learner and actor can have its GPU. Raises ValueError for another device."""
    needed = config.num_learners + config.num_actors * config.actor_gpus
    if config.device == "auto":
        return "cuda" if total["GPU"] >= needed else "cpu"
    if config.device not in ("cpu", "cuda"):
        raise ValueError(
            f"--device {config.device}: with --engine ray choose auto, cpu or cuda; Ray picks which"
        )
    return config.device


def check_resources(
    config: TrainConfig, device: str, total: Mapping[str, float], largest: Mapping[str, float]
) -> None:
    """Raise ValueError if there can never be room for all: Ray would wait in silence."""
    gpus = 1.0 if device == "cuda" else 0.0
    learners, actors = config.num_learners, config.num_actors
    needs = {
        "CPU": (learners, config.learner_cpus, actors, config.actor_cpus),
        "GPU": (learners, gpus, actors, config.actor_gpus),
    }
    for name, (n, per_learner, m, per_actor) in needs.items():
        needed = n * per_learner + m * per_actor
        if needed > total[name] or max(per_learner, per_actor) > largest[name]:
            raise ValueError(
                f"{n} x {per_learner:g} {name} for learners and {m} x {per_actor:g} for actors: there are "
                f"{total[name]:g}, at most {largest[name]:g} on one node; give a smaller --num-actors, "
                + ("--actor-cpus or --learner-cpus" if name == "CPU" else "--actor-gpus, or --device cpu")
            )


def wait_for_room(config: TrainConfig, cluster: Cluster, console: Console) -> torch.device:
    """Wait until the cluster has room for the run, and return the learners' device.

    Raises UsageError if it will have none.
    """
    end = time.monotonic() + (_JOINING if cluster.is_elsewhere else 0.0)
    announced = False
    while True:
        total = cluster.total()
        try:
            device = learner_device(config, total)
            check_resources(config, device, total, cluster.largest_node())
            return torch.device(device)
        except ValueError as error:
            if time.monotonic() >= end:
                raise UsageError(str(error)) from error
            if not announced:
                announced = True
                say(console, f"waiting for machines that may join: {error}")
        time.sleep(0.5)
