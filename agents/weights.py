"""How actors get the learner's newest weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn


class Weights(Protocol):
    """A source of an actor's weights."""

    def pull(self, agent: nn.Module) -> int:
        """Copy the newest weights into `agent` and return their version."""
        ...


def all_weights(agent: nn.Module) -> list[Tensor]:
    """List what actors need of an agent: parameters, and statistics of observations if it has any."""
    return [weight.detach() for weight in (*agent.parameters(), *statistics(agent))]


def statistics(agent: nn.Module) -> list[Tensor]:
    """List the buffers that a learner updates and actors read.

    By convention these are the float64 ones: running sums over a whole run need that precision.
    """
    return [buffer for buffer in agent.buffers() if buffer.dtype == torch.float64]


class WeightStore:
    """The newest published weights and their version; `pull` never sees a half-written set.

    On a GPU `pull` does not wait for the learner: weights whose copy is still queued are pulled once it has
    finished, and until then the previous ones. Only a caller that publishes and pulls on the same stream
    waits, and gets the newest.
    """

    def __init__(self, agent: nn.Module, version: int = 0) -> None:
        self._lock = threading.Lock()
        self._weights = [weight.clone() for weight in all_weights(agent)]
        self.version = version
        self._staging = [weight.clone() for weight in self._weights]
        self._staging_version = version
        self._publisher: torch.cuda.Stream | None = None
        self._arrived: Callable[[], bool] = lambda: False

    def publish(self, agent: nn.Module, version: int) -> None:
        with self._lock, torch.no_grad():
            self._swap()  # else frequent publishing could overwrite each set before any actor pulls it
            torch._foreach_copy_(self._staging, all_weights(agent))
            self._staging_version = version
            self._publisher = self._stream()
            self._arrived = _mark(self._publisher)

    def pull(self, agent: nn.Module) -> int:
        """Copy the newest weights into `agent` and return their version."""
        stream = self._stream()
        with self._lock, torch.no_grad():
            if stream is not None and stream == self._publisher:
                stream.synchronize()
            self._swap()
            torch._foreach_copy_(all_weights(agent), self._weights)
            if stream is not None:
                stream.synchronize()  # once the lock is released they may be overwritten
            return self.version

    def _swap(self) -> None:
        if self._arrived():
            self._weights, self._staging = self._staging, self._weights
            self.version, self._arrived = self._staging_version, lambda: False

    def _stream(self) -> torch.cuda.Stream | None:
        weight = self._weights[0]
        return torch.cuda.current_stream(weight.device) if weight.is_cuda else None


def _mark(stream: torch.cuda.Stream | None) -> Callable[[], bool]:
    """Return a function that is true once the stream's queued work has finished; None is the CPU."""
    return (lambda: True) if stream is None else stream.record_event().query


class SharedWeights:
    """Weights shared with the learner, which changes them in place while nobody acts: nothing to copy."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def publish(self, agent: nn.Module, version: int) -> None:
        self.version = version

    def pull(self, agent: nn.Module) -> int:
        return self.version
