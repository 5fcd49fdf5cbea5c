"""An unroll's steps in one call of C each, where observations are vectors and C has the core."""

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
"""Makes step t."""


@dataclass(frozen=True)
class FusedActor:
    """The steps of one unroll, each of which reads from it and writes into it."""

    _act: Step
    _evaluate_last: Step
    _exp_noise: Sequence[Tensor]
    state: State
    """the core's after the last step that acts, once that is made"""
    _caches: Sequence[ForwardCache]
    _rng: Rng

    def act(self, t: int) -> None:
        """Fill in action and logits of step t."""
        # one by one, so that the actions are those of any other actor
        exponential(self._exp_noise[t], self._rng)
        self._act(t)

    def finish(self) -> None:
        """Make the step after the last one, whose observation is all that the unroll has of it."""
        self._evaluate_last(len(self._exp_noise))
        for cache in self._caches:
            cache.t = cache.steps


def make_fused_actor(fast: FastAgent, unroll: Unroll, rng: Rng) -> FusedActor | None:
    """Prepare the steps of an unroll, whose actions `rng` chooses; they are written into the caches.

    None where a step takes several calls.
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
    normaliser, seen = agent.normaliser, unroll.observation
    read = seen if normaliser is None else torch.empty_like(seen)
    paid, in_c = unroll.reward, agent.spec.reward_scale == 1 and agent.spec.reward_clip  # C clips
    compressed = paid if in_c else torch.empty_like(paid)
    observed = acting.Observed(read, compressed, unroll.done)
    chosen = acting.Chosen(unroll.action, unroll.behavior_logits)
    calls = acting.steps(weights, core_steps, observed, chosen, exp_noise, agent.reward_limit, projection)
    if calls is None:
        return None
    act, evaluate_last = calls
    if normaliser is not None:
        normalise = normaliser.fixed()
        act, evaluate_last = (_after(normalise, seen, read, step) for step in (act, evaluate_last))
    if not in_c:
        act, evaluate_last = (
            _after(agent.core_reward, paid, compressed, step) for step in (act, evaluate_last)
        )
    caches = [each for each in (cache.projection, cache.core) if each]
    return FusedActor(act, evaluate_last, exp_noise.unbind(), core_steps.state, caches, rng)


def _after(change: Callable[[Tensor], Tensor], seen: Tensor, read: Tensor, step: Step) -> Step:
    """Return a step that first changes what is seen into what C reads, both `[T + 1, B, ...]`."""

    def change_and_step(t: int) -> None:
        read[t] = change(seen[t])
        step(t)

    return change_and_step
