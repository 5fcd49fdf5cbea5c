"""What an agent does in each step of a stretch of play, and what it would do with its memory wiped.

All is computed again from what the agent was given: what was played, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ...agents import Agent
from ...agents.masks import forbid

_STEPS_AT_ONCE = 100
"""Through a wiped core, whose state may be large."""


class Inputs(NamedTuple):
    """What an agent was given in T consecutive steps, the first one an episode's first."""

    observation: Tensor
    """`[T, ...]`."""
    reward: Tensor
    """Of the action before `[T]`."""
    begins: Tensor
    """Which steps begin an episode: bool `[T]`."""
    allowed: Tensor | None = None
    """Actions that the environment allows: bool `[T, A]`; None for all."""


class Behaviour(NamedTuple):
    """Policy `[..., A]`, as log probabilities in double precision, and values `[...]`."""

    log_policy: Tensor
    value: Tensor

    def at(self, index: int) -> Behaviour:
        return Behaviour(self.log_policy[index], self.value[index])


@dataclass(frozen=True)
class Examination:
    """What an agent did in T consecutive steps, and would have done with a wiped memory."""

    inputs: Inputs
    x: Tensor
    """What the core reads `[T, n]`."""
    remembering: Behaviour
    """`[T]`."""
    wiped: Behaviour
    """The same with the core's whole state as an episode begins, in each step `[T]`."""

    @cached_property
    def kl(self) -> Tensor:
        """KL(p ‖ p_wiped) of each step, in nats `[T]`."""
        return divergence(self.remembering.log_policy, self.wiped.log_policy)


@torch.inference_mode()
def examine(agent: Agent, inputs: Inputs) -> Examination:
    """Compute again what an agent did when it was given `inputs`."""
    x = agent.core_inputs(inputs.observation, inputs.reward)
    y, _ = agent.core.unroll(x.unsqueeze(1), agent.initial_state(1), inputs.begins.unsqueeze(1))
    remembering = behaviour(agent, y.squeeze(1), inputs.allowed)
    return Examination(inputs, x, remembering, _wiped_behaviour(agent, x, inputs.allowed))


def _wiped_behaviour(agent: Agent, x: Tensor, allowed: Tensor | None) -> Behaviour:
    """Act on each of T core inputs `[T, n]` from the initial state."""
    y = [
        agent.core.step(part, agent.initial_state(len(part)), part.new_ones(len(part), dtype=torch.bool))[0]
        for part in x.split(_STEPS_AT_ONCE)
    ]
    return behaviour(agent, torch.cat(y), allowed)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) in nats, of log probabilities `[..., A]`; actions of probability 0 add nothing."""
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)


def behaviour(agent: Agent, y: Tensor, allowed: Tensor | None) -> Behaviour:
    """Compute policy and value from the core's outputs `[..., n]`; allowed actions are bool `[..., A]`."""
    logits, values = agent.heads(y)
    return Behaviour(
        (logits if allowed is None else forbid(logits, allowed)).double().log_softmax(-1), values
    )
