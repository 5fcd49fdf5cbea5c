"""Install the device's fused ops in a learner, and choose its actors' inference."""

from __future__ import annotations

from collections.abc import Collection

import torch

from .cpu.agent import PARTS, FastAgent
from .cpu.cache import NO_CACHE, CacheSpec
from .cpu.inference import FastInference
from .cpu.ops import fused_ops
from .cuda.inference import GpuInference
from .inference import EagerInference, InferenceFactory
from .learner import Learner
from .network import Agent
from .sampling import Rng

ALL = (*PARTS, "loss", "rmsprop", "adam")


def accelerate(
    learner: Learner, parts: Collection[str] = ALL, spec: CacheSpec = NO_CACHE
) -> InferenceFactory:
    """Replace `parts` of a learner's updates with C kernels; return the factory of its actors' inference.

    Args:
        learner: its `ops` are replaced; its agent is on a CPU.
        parts: names from `ALL`.
        spec: what an actor that takes turns with the learner, in one thread, caches for it.

    Returns:
        An InferenceFactory that runs `parts` in C. For the learner's own agent it also fills that cache.
    """
    fast = FastAgent(learner.agent, parts, spec)
    learner.ops = fused_ops(fast, parts, learner.ops)
    if not fast.parts:
        return EagerInference

    def inference(agent: Agent, rng: Rng) -> EagerInference:
        return FastInference(fast if agent is fast.agent else FastAgent(agent, parts), rng)

    return inference


def inference_for(
    device: torch.device, parts: Collection[str] = ALL, deterministic: bool = False
) -> InferenceFactory:
    """Return inference that shares no activations with a learner: CUDA graphs on a GPU, C on a CPU.

    `parts` are those of the agent that C may compute; `deterministic` leaves out CUDA graphs.
    """
    if device.type == "cuda":
        # Capturing draws random numbers, so a resumed run would not repeat what came before.
        return lambda agent, rng: GpuInference(agent, rng, capture=not deterministic)
    if not {*PARTS} & {*parts}:
        return EagerInference
    return lambda agent, rng: FastInference(FastAgent(agent, parts), rng)
