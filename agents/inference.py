"""How an actor runs its agent: step by step, in eager PyTorch. accelerate.py has faster forms of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores import State
from .network import Agent, AgentOutput
from .sampling import Rng
from .unroll import Unroll


class TimeStep(NamedTuple):
    """What the environments returned for a step, `[B, ...]` each."""

    observation: Any
    reward: Any
    done: Any
    """Whether the observation is the first of an episode: bool `[B]`."""


class EagerInference:
    """Runs an agent for its actor, step by step, with `Agent.act`; the base class of all others."""

    def __init__(self, agent: Agent, rng: Rng) -> None:
        """`rng` samples the actions."""
        self.state: State = ()
        """The core's state before the next step, tensors `[B, ...]`; up to date between unrolls."""
        self._agent = agent
        self._rng = rng

    @property
    def bytes_sent(self) -> int:
        """Bytes of observations that have crossed a bus so far."""
        return 0

    def to_device(self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]) -> TimeStep:
        """Move the environments' outputs to the agent's device."""
        return TimeStep(observation, reward, done)

    def record(self, unroll: Unroll, t: int, timestep: TimeStep) -> None:
        """Write what was observed before step t into an unroll."""
        for buffer, value in zip((unroll.observation, unroll.reward, unroll.done), timestep, strict=True):
            buffer[t] = torch.as_tensor(value)

    def constant_weights(self) -> AbstractContextManager[object]:
        """Return a context in which no weight changes, so that casts and transforms of them may be cached."""
        return nullcontext()

    def start_unroll(self, unroll: Unroll) -> None:
        """Prepare to fill an unroll."""

    def select_actions(self, unroll: Unroll, t: int) -> None:
        """Sample the actions of step t and write them, with the policy's logits, into an unroll.

        Requires `unroll.observation[:t + 1]` to be filled.
        """
        output, self.state = self.act(unroll.observation[t], unroll.reward[t], unroll.done[t])
        unroll.action[t], unroll.behavior_logits[t] = output.action, output.policy_logits

    def act(self, observation: Tensor, reward: Tensor, done: Tensor) -> tuple[AgentOutput, State]:
        """Like `Agent.act` from `self.state`, without updating it."""
        return self._agent.act(observation, reward, done, self.state, generator=self._rng)

    def finish_unroll(self, unroll: Unroll) -> None:
        """Finalise a filled unroll; afterwards it may be handed to another thread."""


InferenceFactory = Callable[[Agent, Rng], EagerInference]
