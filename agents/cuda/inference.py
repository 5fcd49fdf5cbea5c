"""Inference on a GPU: frames arrive one by one, and a step is one CUDA graph."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ...cores import State
from ..inference import TimeStep
from ..network import Agent, AgentOutput
from ..sampling_rng import Rng
from ..unroll import Unroll
from .frame_feed import FrameFeed
from .graphs import CapturedAct


class GpuInference:
    """An `Inference` on a GPU. The first step is captured; without `capture` none is."""

    def __init__(self, agent: Agent, rng: Rng, capture: bool) -> None:
        assert isinstance(rng, torch.Generator), "a GPU is not shared by processes"
        self.state: State = ()
        self._agent = agent
        self._generator = rng
        self._captures = capture
        self._captured: CapturedAct | None = None
        self._device = agent.policy.weight.device
        self._feed = FrameFeed(self._device)

    @property
    def bytes_sent(self) -> int:
        return self._feed.bytes

    def to_device(self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]) -> TimeStep:
        return TimeStep(self._feed(observation), torch.from_numpy(reward), torch.from_numpy(done))

    def record(self, unroll: Unroll, t: int, timestep: TimeStep) -> None:
        for buffer, value in zip((unroll.observation, unroll.reward, unroll.done), timestep, strict=True):
            buffer[t] = value

    def frozen_weights(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start_unroll(self, unroll: Unroll) -> None:
        pass

    def select_actions(self, unroll: Unroll, t: int) -> None:
        inputs = unroll.observation[t], unroll.reward[t], unroll.done[t]
        output, self.state = self._act(*inputs, self.state)
        unroll.action[t], unroll.behavior_logits[t] = output.action, output.policy_logits

    def _act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        if not self._captures:
            return self._agent.act(observation, reward, done, state, generator=self._generator)
        if self._captured is None:
            self._captured = CapturedAct(self._agent, observation, reward, done, state, self._generator)
        return self._captured(observation, reward, done, state)

    def finish_unroll(self, unroll: Unroll) -> None:
        torch.cuda.current_stream(self._device).synchronize()  # the learner reads on another stream
