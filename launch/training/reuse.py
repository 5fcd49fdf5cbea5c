"""From options to what each step of the optimizer learns from: minibatches, and replayed trajectories."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ...agents import Agent, Unroll
from ...agents.reading import MAX_BYTES
from ...agents.replay import ReplayBuffer, with_replayed
from ...agents.reuse import minibatches
from ..config import TrainConfig
from ..errors import require
from ..processes.machine import check_memory
from ..runs.options import DEFAULTS
from ..units import format_bytes, parse_steps
from .engine import CannotRepeat

REFILLS = "the replay buffer begins empty and fills again"
"""Said of a resumed run whose checkpoint does not have it."""


def minibatch_size(config: TrainConfig) -> int:
    """Return the number of trajectories in a step of the optimizer."""
    return config.minibatch_size or config.batch_size


def updates_per_batch(config: TrainConfig) -> int:
    """Return how many steps of the optimizer a batch is good for."""
    return config.passes * config.batch_size // minibatch_size(config)


def batches_of_updates(
    config: TrainConfig, batch: Unroll, version: int, replay: ReplayBuffer | None = None
) -> Iterator[Unroll]:
    """Yield what each step of the optimizer learns from: `config` is one process's, the batch its share.

    `version` is that of the weights before the first step. The order of environments follows from it and the
    seed: a resumed run needs no other state, and all processes draw alike. With `replay`, to which the batch
    is added, each step learns from replayed unrolls, too; an empty buffer does not change how many steps.
    """
    size = config.minibatch_size
    if replay is not None:
        replay.add(batch)
        num_fresh = batch.num_envs
        per_batch = num_replayed(config) * num_fresh // minibatch_size(config)
        batch = with_replayed(batch, replay.sample(per_batch, version))
        size = minibatch_size(config) * batch.num_envs // num_fresh
    return minibatches(batch, config.passes, size, (config.seed, version))


def num_replayed(config: TrainConfig) -> int:
    """Return the number of replayed trajectories in a step of the optimizer."""
    return round(config.replay_ratio * minibatch_size(config))


def check_replay(config: TrainConfig) -> None:
    """Raise ValueError for invalid options of the replay buffer."""
    require(config, "replay_ratio", "replay_max_age", "replay_max_kl", "burn_in", least=0)
    if not config.replay_ratio:
        names = ("replay_buffer", "replay_max_age", "replay_max_kl", "burn_in")
        given = [name for name in names if getattr(config, name) != DEFAULTS[name]]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"{flags}: only with --replay-ratio; add that, or leave {flags} out")
        return
    size = minibatch_size(config)
    replayed = config.replay_ratio * size
    if replayed < 0.5 or not math.isclose(replayed, round(replayed), abs_tol=1e-6):
        each = "--batch-size" if config.minibatch_size is None else "--minibatch-size"
        raise ValueError(
            f"--replay-ratio {config.replay_ratio:g}: times {each} {size} it is {replayed:g} trajectories; "
            "give a ratio that makes it a whole number"
        )
    if _replay_slots(config) < 2:
        batch = config.unroll_length * config.batch_size
        raise ValueError(
            f"--replay-buffer {config.replay_buffer}: it must hold two batches; give {2 * batch} or more"
        )
    if config.burn_in and config.engine == "ray" and config.num_learners > 1:
        raise ValueError(
            f"--burn-in {config.burn_in}: with --num-learners {config.num_learners} an environment's unrolls "
            "go to several learners, each with a buffer of its own; omit one of them"
        )
    if config.burn_in % config.unroll_length:
        raise ValueError(
            f"--burn-in {config.burn_in}: it must be a multiple of --unroll-length {config.unroll_length}"
        )


def _replay_slots(config: TrainConfig) -> int:
    return parse_steps(config.replay_buffer) // (config.unroll_length * config.batch_size)


def make_replay(config: TrainConfig, agent: Agent, process: int) -> ReplayBuffer | None:
    """Make the replay buffer of a process, whose share `config` is; None without replay."""
    if not config.replay_ratio:
        return None
    return ReplayBuffer(
        _replay_slots(config),
        agent,
        seed=(config.seed, process + 1),
        max_age=config.replay_max_age,
        burn_in=config.burn_in // config.unroll_length,
    )


def replay_bytes(config: TrainConfig, env: VectorEnv, agent: Agent) -> int:
    """Return the size of the replay buffers of all processes; 0 without replay."""
    if not config.replay_ratio:
        return 0
    B, space = config.batch_size, env.single_observation_space
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    observation = torch.empty((B, *(space.shape or ())), dtype=dtype, device="meta")
    state = tuple(x.to("meta").expand(B, *x.shape[1:]) for x in agent.initial_state(1))
    batch = Unroll.empty(config.unroll_length, observation, agent.spec.num_actions, state, 0)
    return _replay_slots(config) * sum(x.nbytes for x in batch.tensors())


def replay_notes(config: TrainConfig, env: VectorEnv, agent: Agent, device: torch.device | None) -> list[str]:
    """Say how much memory the replay buffers of all processes take.

    Raises ValueError if `device`, where known, does not have it, or if it is too large for a checkpoint of
    --deterministic.
    """
    if not (needed := replay_bytes(config, env, agent)):
        return []
    if device is not None:
        check_memory("a replay buffer", needed, "give a smaller --replay-buffer", device)
    if config.deterministic and needed > MAX_BYTES // 2:
        raise ValueError(
            f"--replay-buffer {config.replay_buffer}: {format_bytes(needed)} in each checkpoint of "
            f"--deterministic, at most {format_bytes(MAX_BYTES // 2)}; give a smaller one"
        )
    return [f"the replay buffer takes {format_bytes(needed)} of memory (--replay-buffer)"]


def saved_replay(state: Mapping[str, Any], count: int) -> list[Mapping[str, Any]] | None:
    """Return the states of all learners' replay buffers; None if episodes begin anew, too.

    Raises CannotRepeat if one is missing.
    """
    if state["actors"] is None:
        return None
    saved: list[Mapping[str, Any]] = state.get("replay", [])
    if len(saved) != count:
        raise CannotRepeat(f"it has replay buffers of {len(saved)} learners, not {count}")
    return saved
