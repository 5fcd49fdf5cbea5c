"""`Agent.act` as one CUDA graph: a step of inference is one launch instead of some hundred."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cores import State
from .network import Agent, AgentOutput

_WARM_UP = 3
"""Runs before the capture: kernels are compiled and chosen in them."""


class CapturedAct:
    """Sampling actions for one batch size, with the agent's weights as they are at each call.

    `generator` draws the samples, inside the graph as outside.
    """

    def __init__(
        self,
        agent: Agent,
        frame: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        generator: torch.Generator,
    ) -> None:
        self._inputs = [x.clone() for x in (frame, reward, done, *state)]
        current, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                self._run(agent, generator)
        current.wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        # The learner works in another thread, and may do what this one must not.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output, self._state = self._run(agent, generator)

    def _run(self, agent: Agent, generator: torch.Generator) -> tuple[AgentOutput, State]:
        frame, reward, done, *state = self._inputs
        with torch.no_grad():
            return agent.act(frame, reward, done, tuple(state), generator=generator)

    def __call__(
        self, frame: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        """As `Agent.act`; nothing that it returns changes at the next call."""
        torch._foreach_copy_(self._inputs, [frame, reward, done, *state])
        self._graph.replay()
        return AgentOutput(*(x.clone() for x in self._output)), tuple(x.clone() for x in self._state)
