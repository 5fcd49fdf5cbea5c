"""Functions of tensors as CUDA graphs: one launch instead of some hundred or thousand."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...cores import State
from ..network import Agent, AgentOutput

Results = TypeVar("Results")

_WARM_UP = 3
"""Runs before the capture: kernels are compiled and chosen in them."""
ALONE = threading.Lock()
"""Held by what waits for the whole device, which no capture of the process allows while it lasts: captures do
so themselves, before they begin, and so does compiling."""
FIRST = -1
"""Priority of the streams of actors, whose small kernels would queue up behind whole updates."""


def record(
    run: Callable[[], Results], generator: torch.Generator | None = None, priority: int = 0
) -> tuple[Results, Callable[[], None]]:
    """Record what `run` has the GPU do: its results, and what computes them anew, in the same memory.

    `run` is called some times before, for real. `generator` is what it draws from, if not the default one.
    `priority` is what its kernels keep, whichever stream they are launched into; the lowest goes first.
    Raises RuntimeError if a graph cannot hold what it does: it waits for the device, for instance.
    """
    with ALONE:
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        current, beside = torch.cuda.current_stream(), torch.cuda.Stream(priority=priority)
        beside.wait_stream(current)
        try:
            with torch.cuda.stream(beside):  # which a capture that fails does not leave by itself
                for _ in range(_WARM_UP):
                    run()
                # Other threads work on, and may do what this one must not.
                with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
                    results = run()
        finally:
            current.wait_stream(beside)
    return results, graph.replay


class Captured:
    """A function of tensors as one CUDA graph, for inputs of the shapes it was captured with.

    Whatever else it reads or changes must stay where it is: weights that change in place are seen. What it
    returns is overwritten by the next call. Inputs of other shapes run as without a graph; so does, with a
    warning, what no graph can hold.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        generator: torch.Generator | None = None,
        priority: int = 0,
    ) -> None:
        self._function = function
        self._inputs = [x.clone() for x in inputs]
        self._replay: Callable[[], None] | None = None
        try:
            self._results, self._replay = record(lambda: function(*self._inputs), generator, priority)
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            warnings.warn(
                f"no CUDA graph can hold this agent; it runs without, slower: {reason}", stacklevel=2
            )

    def __call__(self, *inputs: Tensor) -> Any:
        if self._replay is None or [x.shape for x in inputs] != [x.shape for x in self._inputs]:
            return self._function(*inputs)
        torch._foreach_copy_(self._inputs, list(inputs))
        self._replay()
        return self._results


class CapturedAct:
    """`Agent.act`, sampling actions for one batch size with the weights as they are at each call.

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
        @torch.no_grad()
        def act(frame: Tensor, reward: Tensor, done: Tensor, *state: Tensor) -> tuple[AgentOutput, State]:
            return agent.act(frame, reward, done, state, generator=generator)

        self._act = Captured(act, (frame, reward, done, *state), generator, FIRST)

    def __call__(
        self, frame: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        """As `Agent.act`; nothing that it returns changes at the next call."""
        output, state = self._act(frame, reward, done, *state)
        return AgentOutput(*(x.clone() for x in output)), tuple(x.clone() for x in state)
