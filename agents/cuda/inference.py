"""Inference on a GPU: a step is one CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ...cores import State
from ..inference import EagerInference, TimeStep
from ..network import Agent, AgentOutput
from ..sampling import Rng
from ..unroll import Unroll
from .frame_feed import FrameFeed
from .graphs import ACTOR_PRIORITY, Captured


class GpuInference(EagerInference):
    """An inference on a GPU. The first step is captured; without `capture` none is."""

    def __init__(self, agent: Agent, rng: Rng, capture: bool) -> None:
        assert isinstance(rng, torch.Generator), "a GPU is not shared by processes"
        super().__init__(agent, rng)
        self._generator = rng
        self._captures = capture
        self._captured: Captured | None = None
        self._device = agent.policy.weight.device
        self._feed = FrameFeed(self._device)

    @property
    def bytes_sent(self) -> int:
        return self._feed.bytes

    def to_device(self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]) -> TimeStep:
        return TimeStep(self._feed(observation), torch.from_numpy(reward), torch.from_numpy(done))

    def act(self, observation: Tensor, reward: Tensor, done: Tensor) -> tuple[AgentOutput, State]:
        if not self._captures:
            return super().act(observation, reward, done)
        inputs = observation, reward, done, *self.state
        if self._captured is None:
            self._captured = Captured(self._act_from, inputs, self._generator, ACTOR_PRIORITY)
        output, state = self._captured(*inputs)
        copied = AgentOutput._make(x if x is None else x.clone() for x in output)
        return copied, tuple(x.clone() for x in state)  # the next call overwrites the others

    @torch.no_grad()
    def _act_from(
        self, observation: Tensor, reward: Tensor, done: Tensor, *state: Tensor
    ) -> tuple[AgentOutput, State]:
        return self._agent.act(observation, reward, done, state, generator=self._generator)

    def finish_unroll(self, unroll: Unroll) -> None:
        torch.cuda.current_stream(self._device).synchronize()  # the learner reads on another stream
