"""Inference on a GPU: frames arrive one by one, and a step is one CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ...cores import State
from ..known import UNKNOWN, Known
from ..network import Agent, AgentOutput
from ..unroll import Unroll
from .frame_feed import FrameFeed
from .graphs import CapturedAct


class GpuInference:
    """An `Inference` on a GPU. The first step is captured; without `capture` none is."""

    def __init__(self, agent: Agent, generator: torch.Generator, capture: bool) -> None:
        self._agent = agent
        self._generator = generator
        self._captures = capture
        self._captured: CapturedAct | None = None
        self._device = agent.policy.weight.device
        self._feed = FrameFeed(self._device)

    @property
    def bytes_sent(self) -> int:
        return self._feed.bytes

    def observe(
        self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._feed(observation), torch.from_numpy(reward), torch.from_numpy(done)

    def rooms(self, unroll: Unroll) -> tuple[Tensor, Tensor, Tensor]:
        return unroll.observation, unroll.reward, unroll.done

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        if not self._captures:
            return self._agent.act(observation, reward, done, state, generator=self._generator)
        if self._captured is None:
            self._captured = CapturedAct(self._agent, observation, reward, done, state, self._generator)
        return self._captured(observation, reward, done, state)

    def begin(self, unroll: Unroll) -> None:
        return None

    def finish(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> Known:
        torch.cuda.current_stream(self._device).synchronize()  # the learner reads on another stream
        return UNKNOWN
