"""Which components of a run C computes on a CPU, and which activations actors cache for the learner."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from ...agents import Agent, Learner
from ...agents.accelerate import ALL
from ...agents.cpu.cache import NO_CACHE, CacheSpec
from ...agents.cpu.verify import fallback_message, mismatches, supported_parts, verification_unroll
from ...kernels.native.compiling import identity
from ..config import TrainConfig
from .plan import compiles, overlaps
from .reuse import minibatch_size

CACHING_PAYS_FROM: dict[str, dict[torch.dtype | None, int]] = {
    "residual": {None: 4, torch.bfloat16: 8},
    "nature": {None: 8, torch.bfloat16: 8},
    "shallow": {None: 8},
}
"""Minimum number of environments per process at which trunk caching helps, by stem and dtype (None is
float32): results/throughput."""


class FusedRecord(NamedTuple):
    """Result of a comparison with eager PyTorch; its text is "<comma-separated parts>|off by <build>"."""

    parts: tuple[str, ...]
    """components that C computes"""
    build: str
    """`compiling.identity()` of the libraries that were compared"""

    @classmethod
    def parse(cls, text: str) -> FusedRecord:
        parts, _, build = text.partition(" by ")
        return cls(() if parts == "off" else tuple(parts.split(",")), build)

    def __str__(self) -> str:
        return f"{','.join(self.parts) or 'off'} by {self.build}"


def cache_spec(share: TrainConfig, device: torch.device, agent: Agent) -> CacheSpec:
    """Choose what actors cache of what they compute: the learner need not compute it again.

    The learner must have the weights that acted: it takes turns with actors and learns from whole unrolls.
    `share` is that of one process.
    """
    in_turns = device.type == "cpu" and not overlaps(share, device) and not compiles(share, device)
    # A deterministic run may go on with another engine, whose learner rounds as if nothing had been cached.
    if not in_turns or share.deterministic or share.num_envs > share.batch_size:
        return NO_CACHE
    if share.replay_ratio:  # a batch with replayed unrolls is not what an actor has computed
        return NO_CACHE
    pays_from = CACHING_PAYS_FROM.get(agent.spec.stem, {}).get(agent.autocast_dtype, math.inf)
    unrolls = share.batch_size // share.num_envs
    is_whole = minibatch_size(share) == share.batch_size  # of a part nothing is taken from the cache
    return CacheSpec(
        trunk=unrolls if is_whole and share.num_envs >= pays_from else 0,
        projection=unrolls == 1,
        core=unrolls == 1 and share.bptt == "full",
    )


def fused_parts(
    config: TrainConfig,
    learner: Learner,
    observation: Callable[[], NDArray[Any]],
    spec: CacheSpec = NO_CACHE,
    fused_record: str | None = None,
) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the components that C computes on a CPU, a note for each that falls back, and the run's record.

    Components are compared with eager PyTorch on the first observations `[B, ...]`, with the caches of
    `spec`. The run stores the record, a `FusedRecord` as text, by the option's name (`{"fused": record}`).
    `fused_record`: that of a resumed run. For the same build it decides without another comparison, so that
    the run goes on with the same numbers; for another build it is ignored.
    """
    device = learner.agent.policy.weight.device
    if config.fused == "off" or device.type != "cpu" or compiles(config, device):
        return [], [], {}
    parts, notes = supported_parts(ALL, learner)
    record = FusedRecord.parse(fused_record or "")
    if record.build == identity():
        return [part for part in parts if part in record.parts], notes, {"fused": str(record)}
    unroll = verification_unroll(learner.agent, torch.from_numpy(observation()))
    for part, what in mismatches(learner, unroll, parts, spec).items():
        parts.remove(part)
        notes.append(fallback_message(part, f"C differs from it in {what}"))
    return parts, notes, {"fused": str(FusedRecord(tuple(parts), identity()))}
