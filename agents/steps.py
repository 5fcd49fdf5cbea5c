"""An unroll's steps in one call of C each, where observations are vectors and C knows the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..cores import Kept, State
from ..cores.layer import weights_of
from ..kernels.native import acting
from .known import Known
from .network import Agent
from .noise import Noise, exponential
from .stems import VectorStem
from .unroll import Unroll

Step = Callable[[int], None]
"""Makes step t."""


class Steps:
    """The steps of one unroll. Each reads what that holds of its observation and keeps what it computes."""

    def __init__(
        self,
        act: Step,
        observe: Step,
        races: Sequence[Tensor],
        state: State,
        kept: Sequence[Kept],
        noise: Noise,
    ) -> None:
        self._act = act
        self._observe = observe
        self._races = races
        self.state = state
        """the core's after the last step that acts, once that is made"""
        self._kept = kept
        self._noise = noise

    def act(self, t: int) -> None:
        """Fill in action and logits of step t."""
        # one by one, so that the actions are those of any other actor
        exponential(self._races[t], self._noise)
        self._act(t)

    def finish(self) -> None:
        """Make the step after the last one, whose observation is all that the unroll has of it."""
        self._observe(len(self._races))
        for kept in self._kept:
            kept.t = kept.steps


def prepare(agent: Agent, unroll: Unroll, known: Known, noise: Noise) -> Steps | None:
    """Prepare the steps of an unroll, whose actions `noise` chooses, and which are kept in `known`.

    None where a step takes several calls.
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
    normaliser, seen = agent.normaliser, unroll.observation
    read = seen if normaliser is None else torch.empty_like(seen)
    paid, in_c = unroll.reward, agent.spec.reward_scale == 1 and agent.spec.reward_clip  # C clips
    compressed = paid if in_c else torch.empty_like(paid)
    observed = acting.Observed(read, compressed, unroll.done)
    chosen = acting.Chosen(unroll.action, unroll.behavior_logits)
    calls = acting.steps(weights, core_steps, observed, chosen, race, agent.reward_limit, projection)
    if calls is None:
        return None
    act, observe = calls
    if normaliser is not None:
        normalise = normaliser.fixed()
        act, observe = (_after(normalise, seen, read, step) for step in (act, observe))
    if not in_c:
        act, observe = (_after(agent.compressed_reward, paid, compressed, step) for step in (act, observe))
    kept = [each for each in (known.projection, core) if each]
    return Steps(act, observe, race.unbind(), core_steps.state, kept, noise)


def _after(change: Callable[[Tensor], Tensor], seen: Tensor, read: Tensor, step: Step) -> Step:
    """Return a step that first changes what is seen into what C reads, both `[T + 1, B, ...]`."""

    def change_and_step(t: int) -> None:
        read[t] = change(seen[t])
        step(t)

    return change_and_step
