"""How a run is laid out over a cluster: who gets how many columns, what it takes, and whether it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...config import TrainConfig
from ...runs.options import given_only_for


@dataclass(frozen=True)
class Layout:
    """Columns of unrolls and batches. A piece is what travels: some columns of an unroll, whole steps."""

    columns: int
    """of a piece"""
    pieces_per_unroll: int
    pieces_per_update: int
    """of each learner"""


def layout(config: TrainConfig) -> Layout:
    """Raises ValueError if unrolls do not fit the learners' shares of a batch."""
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
    return Layout(columns, config.num_envs // columns, share // columns)


def check_cluster(config: TrainConfig) -> None:
    """Raise ValueError for options that a cluster cannot keep."""
    if given := given_only_for("local", config):
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{flags}: only with --engine local; with ray say --num-actors")
    for name in ("actor_cpus", "learner_cpus"):
        if not getattr(config, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be positive")
    if not 0 <= config.actor_gpus <= 1:
        raise ValueError("--actor-gpus must lie between 0 and 1: an actor uses at most one GPU")
    if config.num_learners < 1:
        raise ValueError("--num-learners must be at least 1")
    layout(config)


def learner_device(config: TrainConfig, total: Mapping[str, float]) -> str:
    """cuda where each learner and actor can have its GPU. Raises ValueError for one that is not there."""
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
    """Raise ValueError if there can never be room for all; Ray would wait for it without a word."""
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


def actor_seed(seed: int, index: int, incarnation: int, start_step: int) -> int:
    """Of an actor: as with the local engine at first, another one for each later life."""
    if incarnation == 0 and start_step == 0:
        return seed * 1000 + index
    return int(np.random.SeedSequence([seed, index, incarnation, start_step]).generate_state(1)[0])
