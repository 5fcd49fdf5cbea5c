"""An actor's steps in one call of C each, for vector observations and the cores that C steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...cores import State
from ...kernels.native import acting
from ...kernels.native.forward_cache import ForwardCache
from ..sampling import Rng, exponential
from ..stems import VectorStem
from ..unroll import Unroll
from .agent import PARTS, FastAgent
from .cores import functions_of
from .modules import is_hooked, weights_of

Step = Callable[[int], None]
"""Executes step t: a C function with its argument struct bound, behind the transforms left to Python."""


@dataclass(frozen=True)
class FusedActor:
    """C callbacks for the steps of one unroll, whose tensors they read and write in place."""

    _act: Step
    _evaluate_last: Step
    _exp_noise: Sequence[Tensor]
    """Exp(1) noise `[B, A]` of each step, with which C samples actions."""
    state: State
    """The core's state after step T - 1, each tensor `[B, ...]`; valid once that step has been executed."""
    _caches: Sequence[ForwardCache]
    _rng: Rng

    def act(self, t: int) -> None:
        """Execute step t: write its actions and logits into the unroll."""
        # Drawn step by step, so that the actions are those of any other actor.
        exponential(self._exp_noise[t], self._rng)
        self._act(t)

    def finish(self) -> None:
        """Evaluate the final observation, which the caches need too, without choosing actions."""
        self._evaluate_last(len(self._exp_noise))
        for cache in self._caches:
            cache.t = cache.steps


def make_fused_actor(fast: FastAgent, unroll: Unroll, rng: Rng) -> FusedActor | None:
    """Prepare C argument structs and callbacks for the steps of an unroll; actions are sampled from `rng`.

    Activations are written into the caches of `fast`. None if C cannot compute a step in one call.
    """
    agent, cache = fast.agent, fast.cache
    stem, core = agent.stem, functions_of(agent.core)
    if type(stem) is not VectorStem or is_hooked(stem) or {*PARTS} - {*fast.parts}:
        return None
    if cache.core is None or core is None or core.steps is None:
        return None
    layers = stem.fc1, stem.fc2, stem.norm, agent.policy, agent.baseline
    weights = weights_of(*layers, kinds=(nn.Linear, nn.Linear, nn.Identity, nn.Linear, nn.Linear))
    core_steps = core.steps(agent.core, unroll.state, cache.core)
    if not weights or core_steps is None:
        return None
    exp_noise = torch.empty_like(unroll.behavior_logits)
    projection = cache.projection.tensors[0] if cache.projection else None
    normaliser, raw_obs, raw_reward = agent.normaliser, unroll.observation, unroll.reward
    normalised_obs = raw_obs if normaliser is None else torch.empty_like(raw_obs)
    clip_in_c = agent.spec.reward_scale == 1 and agent.spec.reward_clip
    core_reward = raw_reward if clip_in_c else torch.empty_like(raw_reward)
    observed = acting.Observed(normalised_obs, core_reward, unroll.done)
    chosen = acting.Chosen(unroll.action, unroll.behavior_logits)
    calls = acting.steps(weights, core_steps, observed, chosen, exp_noise, agent.reward_limit, projection)
    if calls is None:
        return None
    act, evaluate_last = calls
    if normaliser is not None:
        normalise = normaliser.frozen_transform()
        act, evaluate_last = (
            _after(normalise, raw_obs, normalised_obs, step) for step in (act, evaluate_last)
        )
    if not clip_in_c:
        act, evaluate_last = (
            _after(agent.core_reward, raw_reward, core_reward, step) for step in (act, evaluate_last)
        )
    caches = [each for each in (cache.projection, cache.core) if each]
    return FusedActor(act, evaluate_last, exp_noise.unbind(), core_steps.state, caches, rng)


def _after(transform: Callable[[Tensor], Tensor], source: Tensor, target: Tensor, step: Step) -> Step:
    """Return a step that first writes `transform(source[t])` into `target[t]`, both `[T + 1, B, ...]`."""

    def transform_and_step(t: int) -> None:
        target[t] = transform(source[t])
        step(t)

    return transform_and_step
