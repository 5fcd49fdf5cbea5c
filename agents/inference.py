"""Run an actor's agent, on the CPU or on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores import Kept, State
from .cuda.inference import GpuInference
from .network import Agent, AgentOutput
from .unroll import Known


class Keep(NamedTuple):
    """Whether to keep what the stem's trunk computes, and what its projection and the core compute."""

    trunk: bool = False
    core: bool = False


NOTHING = Keep()


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

    def finish(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> Known:
        """End an unroll with what follows it: wait until another thread can read all that was recorded, and
        return what is known of the steps since the last call."""
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

    def finish(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> Known:
        return Known()


class KeepingInference(DirectInference):
    """On the CPU, by the learner's own agent: keeps what it computed, and how, for the learner."""

    def __init__(self, agent: Agent, generator: torch.Generator, keep: Keep, unroll_length: int) -> None:
        super().__init__(agent, generator)
        self._keep = keep
        self._steps = unroll_length + 1
        self._trunk: list[Tensor] = []
        self._core: Kept | None = None
        self._projected: Kept | None = None

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        with torch.set_grad_enabled(self._keep.trunk):
            features = self._agent.trunk_features(observation)
        if self._keep.trunk:
            self._trunk.append(features)
        if self._keep.core and self._core is None:
            self._core = self._agent.core.new_kept(self._steps, len(done))
            if self._core is not None:
                self._projected = self._agent.new_projected(self._steps, len(done))
        return self._agent.act_on(
            features.detach(), reward, done, state, generator=self._generator, kept=self._core,
            projected=self._projected,
        )  # fmt: skip

    def finish(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> Known:
        # No gradient reaches the bootstrap value.
        features = self._agent.trunk_features(observation)
        if self._core is not None:
            self._agent.core_step(features, reward, done, state, self._core, self._projected)
        known = Known((*self._trunk, features) if self._trunk else (), self._core, self._projected)
        self._trunk, self._core, self._projected = [], None, None
        return known


def make_inference(
    agent: Agent, generator: torch.Generator, deterministic: bool, keep: Keep, unroll_length: int
) -> Inference:
    """Choose by the agent's device; `generator` draws the actions."""
    if keep.trunk or keep.core:
        return KeepingInference(agent, generator, keep, unroll_length)
    if agent.policy.weight.device.type == "cuda":
        # Capturing draws random numbers, so a resumed run would not repeat what came before.
        return GpuInference(agent, generator, capture=not deterministic)
    return DirectInference(agent, generator)
