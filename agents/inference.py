"""Run an actor's agent, on the CPU or on a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores import State
from .cuda.inference import GpuInference
from .network import Agent, AgentOutput


class Inference(Protocol):
    """An agent as its actor sees it."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of observations that have crossed a bus so far."""
        ...

    def observe(self, observation: NDArray[Any]) -> Tensor:
        """Bring the environments' observation, `[B, ...]`, to where the agent is."""
        ...

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        """Do as `Agent.act`, with actions sampled."""
        ...

    def finish(self, observation: Tensor) -> tuple[Tensor, ...]:
        """End an unroll with the observation that follows: wait until another thread can read all that was
        recorded, and return the `Unroll.trunk` of the steps since the last call."""
        ...


class DirectInference:
    """On the CPU: nothing to bring, nothing to wait for."""

    bytes_sent = 0

    def __init__(self, agent: Agent, generator: torch.Generator) -> None:
        self._agent = agent
        self._generator = generator

    def observe(self, observation: NDArray[Any]) -> Tensor:
        return torch.from_numpy(observation)

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        return self._agent.act(observation, reward, done, state, generator=self._generator)

    def finish(self, observation: Tensor) -> tuple[Tensor, ...]:
        return ()


class KeepingInference(DirectInference):
    """On the CPU, by the learner's own agent: keeps what the trunk computed, and how, for the learner."""

    def __init__(self, agent: Agent, generator: torch.Generator) -> None:
        super().__init__(agent, generator)
        self._kept: list[Tensor] = []

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        with torch.enable_grad():
            features = self._agent.trunk_features(observation)
        self._kept.append(features)
        return self._agent.act_on(features.detach(), reward, done, state, generator=self._generator)

    def finish(self, observation: Tensor) -> tuple[Tensor, ...]:
        # No gradient reaches the bootstrap value.
        kept, self._kept = (*self._kept, self._agent.trunk_features(observation)), []
        return kept


def make_inference(
    agent: Agent, generator: torch.Generator, deterministic: bool, keep_trunk: bool
) -> Inference:
    """Choose by the agent's device; `generator` draws the actions."""
    if keep_trunk:
        return KeepingInference(agent, generator)
    if agent.policy.weight.device.type == "cuda":
        # Capturing draws random numbers, so a resumed run would not repeat what came before.
        return GpuInference(agent, generator, capture=not deterministic)
    return DirectInference(agent, generator)
