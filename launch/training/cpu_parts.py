"""Which parts of a run C computes on a CPU, and what its actors cache for the learner."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from ...agents import Agent, Learner
from ...agents.accelerate import ALL
from ...agents.cpu.cache import NO_CACHE, CacheSpec
from ...agents.cpu.verify import fallback_message, mismatches, probe_unroll, unedited_parts
from ...kernels.native.compiling import identity
from ..config import TrainConfig
from .plan import compiles, overlaps

CACHING_PAYS_FROM: dict[str, dict[torch.dtype | None, int]] = {
    "residual": {None: 4, torch.bfloat16: 8},
    "nature": {None: 8, torch.bfloat16: 8},
    "shallow": {None: 8},
}
"""With these stems caching trunk features pays, from so many environments of a process on, by their dtype
(None is float32): results/throughput."""


def cache_spec(share: TrainConfig, device: torch.device, agent: Agent) -> CacheSpec:
    """Choose what actors cache of what they compute: the learner need not compute it again.

    The learner must have the weights that acted: it takes turns with actors and learns from whole unrolls.
    `share` is that of one process.
    """
    in_turns = device.type == "cpu" and not overlaps(share, device) and not compiles(share, device)
    # A deterministic run may go on with another engine, whose learner rounds as if nothing had been cached.
    if not in_turns or share.deterministic or share.num_envs > share.batch_size:
        return NO_CACHE
    pays_from = CACHING_PAYS_FROM.get(agent.spec.stem, {}).get(agent.autocast_dtype, math.inf)
    unrolls = share.batch_size // share.num_envs
    return CacheSpec(
        trunk=unrolls if share.num_envs >= pays_from else 0,
        projection=unrolls == 1,
        core=unrolls == 1 and share.bptt == "full",
    )


def fused_parts(
    config: TrainConfig,
    learner: Learner,
    observation: Callable[[], NDArray[Any]],
    spec: CacheSpec = NO_CACHE,
    verdict: str | None = None,
) -> tuple[list[str], list[str], dict[str, str]]:
    """Return which parts of a run C may compute on a CPU, a note for each that it may not, and the verdict
    that the run stores, by the name of its option.

    They are compared on the first observations, `[B, ...]`, with the caches of `spec`. `verdict` is the
    stored one of a run that is resumed, whose numbers stay the same; on another machine it says nothing.
    """
    device = learner.agent.policy.weight.device
    if config.fused == "off" or device.type != "cpu" or compiles(config, device):
        return [], [], {}
    parts, notes = unedited_parts(ALL, learner.agent, learner.ops)
    stored, _, machine = (verdict or "").partition(" by ")
    if machine == identity():
        return [part for part in parts if part in stored.split(",")], notes, {"fused": f"{verdict}"}
    unroll = probe_unroll(learner.agent, torch.from_numpy(observation()))
    for part, what in mismatches(learner, unroll, parts, spec).items():
        parts.remove(part)
        notes.append(fallback_message(part, f"C differs from it in {what}"))
    return parts, notes, {"fused": f"{','.join(parts) or 'off'} by {identity()}"}
