"""An unroll's steps in one call of C each, where observations are vectors and C knows the core."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ..cores import State
from ..cores.layer import weights_of
from ..kernels.native import acting
from .known import Known
from .network import REWARD_LIMIT, Agent
from .stems import VectorStem
from .unroll import Unroll


def prepare(
    agent: Agent, unroll: Unroll, known: Known, generator: torch.Generator
) -> Callable[[int], State] | None:
    """Return what makes step t and returns the core's state after it; None where that takes several calls.

    A step reads what `unroll` holds of its observation, fills in its action, drawn by `generator`, and logits,
    and keeps what it computes in `known`.
    """
    stem, core = agent.stem, known.core
    if type(stem) is not VectorStem or core is None:
        return None
    layers = stem.fc1, stem.fc2, stem.norm, agent.policy, agent.baseline
    weights = weights_of(*layers, kinds=(nn.Linear, nn.Linear, nn.Identity, nn.Linear, nn.Linear))
    core_steps = agent.core.steps_in_c(unroll.state, core)
    if not weights or core_steps is None:
        return None
    race = torch.empty_like(unroll.behavior_logits)
    projection = known.projection.tensors[0] if known.projection else None
    observed = acting.Observed(unroll.observation, unroll.reward, unroll.done)
    chosen = acting.Chosen(unroll.action, unroll.behavior_logits)
    step = acting.steps(weights, core_steps, observed, chosen, race, REWARD_LIMIT, projection)
    if step is None:
        return None
    races, states = race.unbind(), list(zip(*(part.unbind() for part in core_steps.states), strict=True))
    kept = [each for each in (known.projection, core) if each]

    def make(t: int) -> State:
        races[t].exponential_(generator=generator)  # one by one, so that it acts as any other actor
        step(t)
        for each in kept:
            each.t = t + 1
        return states[t]

    return make
