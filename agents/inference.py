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

    def finish(self) -> None:
        """Wait until what was recorded can be read by another thread."""
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

    def finish(self) -> None:
        pass


def make_inference(agent: Agent, generator: torch.Generator, deterministic: bool) -> Inference:
    """Choose by the agent's device; `generator` draws the actions."""
    if agent.policy.weight.device.type == "cuda":
        # Capturing draws random numbers, so a resumed run would not repeat what came before.
        return GpuInference(agent, generator, capture=not deterministic)
    return DirectInference(agent, generator)
