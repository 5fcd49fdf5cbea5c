"""How an actor runs its agent: step by step, in eager PyTorch. accelerate.py attaches what is faster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray

from ..cores import State
from .network import Agent
from .sampling_rng import Rng
from .unroll import Unroll


class TimeStep(NamedTuple):
    """What the environments answered, `[B, ...]` each."""

    observation: Any
    reward: Any
    done: Any
    """where the observation is the first of an episode"""


class Inference(Protocol):
    """An agent as its actor sees it."""

    state: State
    """the core's, `[B, ...]` each, before the step that comes next; up to date between unrolls"""

    @property
    def bytes_sent(self) -> int:
        """Bytes of observations that have crossed a bus so far."""
        ...

    def to_device(self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]) -> TimeStep:
        """Move the environments' outputs to the agent's device."""
        ...

    def record(self, unroll: Unroll, t: int, timestep: TimeStep) -> None:
        """Write what was observed before step t into an unroll."""
        ...

    def frozen_weights(self) -> AbstractContextManager[object]:
        """Return a context in which no weight changes: casts and transforms of weights may be cached."""
        ...

    def start_unroll(self, unroll: Unroll) -> None:
        """Prepare the steps of an unroll that is to be filled."""
        ...

    def select_actions(self, unroll: Unroll, t: int) -> None:
        """Write the actions of step t, sampled from the policy, and its logits into an unroll whose
        observations are there up to t."""
        ...

    def finish_unroll(self, unroll: Unroll) -> None:
        """End an unroll whose last observation is there: another thread may read it then."""
        ...


class EagerInference:
    """Calls `Agent.act`, step by step."""

    bytes_sent = 0

    def __init__(self, agent: Agent, rng: Rng) -> None:
        """`rng` samples the actions."""
        self.state: State = ()
        self._agent = agent
        self._rng = rng

    def to_device(self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]) -> TimeStep:
        return TimeStep(observation, reward, done)

    def record(self, unroll: Unroll, t: int, timestep: TimeStep) -> None:
        for buffer, value in zip((unroll.observation, unroll.reward, unroll.done), timestep, strict=True):
            buffer[t] = torch.as_tensor(value)

    def frozen_weights(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start_unroll(self, unroll: Unroll) -> None:
        pass

    def select_actions(self, unroll: Unroll, t: int) -> None:
        inputs = unroll.observation[t], unroll.reward[t], unroll.done[t]
        output, self.state = self._agent.act(*inputs, self.state, generator=self._rng)
        unroll.action[t], unroll.behavior_logits[t] = output.action, output.policy_logits

    def finish_unroll(self, unroll: Unroll) -> None:
        pass


InferenceFactory = Callable[[Agent, Rng], Inference]
