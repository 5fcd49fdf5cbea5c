"""Functions of tensors as CUDA graphs: one launch instead of hundreds or thousands."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Results = TypeVar("Results")

_WARM_UP = 3
"""Runs before the capture, in which kernels are compiled and chosen."""
CAPTURE_LOCK = threading.Lock()
"""Held while capturing or compiling: both synchronise the whole device, which is illegal while another thread
captures."""
ACTOR_PRIORITY = -1
"""Stream priority of actors: otherwise their small kernels would queue behind whole updates."""


def record(
    run: Callable[[], Results], generator: torch.Generator | None = None, priority: int = 0
) -> tuple[Results, Callable[[], None]]:
    """Capture `run` in a CUDA graph; return its outputs and a replay function that overwrites them.

    `run` is first called a few times for real. `generator` is the one it draws from, if not the default.
    `priority` is that of its kernels, whichever stream the graph is launched into; lower goes first.
    Raises RuntimeError if `run` cannot be captured, for instance because it waits for the device.
    """
    with CAPTURE_LOCK:
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        current, beside = torch.cuda.current_stream(), torch.cuda.Stream(priority=priority)
        beside.wait_stream(current)
        try:
            with torch.cuda.stream(beside):  # a failed capture would stay on it
                for _ in range(_WARM_UP):
                    run()
                # Thread-local: other threads go on, and may do what is illegal during this capture.
                with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
                    results = run()
        finally:
            current.wait_stream(beside)
    return results, graph.replay


class Captured:
    """A function of tensors as one CUDA graph, for inputs of the shapes it was captured with.

    Whatever else it reads or writes must keep its address; weights that change in place are followed. The
    next call overwrites its outputs. Inputs of other shapes run without the graph, and so does, with a
    warning, a function that cannot be captured.
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
