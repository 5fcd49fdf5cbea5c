"""How actors get the learner's newest weights."""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch import nn


class Weights(Protocol):
    """Where an actor's weights come from."""

    def pull(self, agent: nn.Module) -> int:
        """Let `agent` have the newest weights; returns their version."""
        ...


class WeightStore:
    """The newest published weights and their version; `pull` never sees a half-written set."""

    def __init__(self, agent: nn.Module, version: int = 0) -> None:
        self._lock = threading.Lock()
        self._weights = [p.detach().clone() for p in agent.parameters()]
        self.version = version

    def publish(self, agent: nn.Module, version: int) -> None:
        with self._lock, torch.no_grad():
            torch._foreach_copy_(self._weights, [p.detach() for p in agent.parameters()])
            self._finish()
            self.version = version

    def pull(self, agent: nn.Module) -> int:
        """Copy the newest weights into `agent` and return their version."""
        with self._lock, torch.no_grad():
            torch._foreach_copy_([p.detach() for p in agent.parameters()], self._weights)
            self._finish()
            return self.version

    def _finish(self) -> None:
        """Learner and actors work on streams of their own: a copy ends before the lock is given away."""
        if self._weights[0].is_cuda:
            torch.cuda.current_stream(self._weights[0].device).synchronize()


class SharedWeights:
    """Weights that the learner changes in place, while nobody acts: there is nothing to copy."""

    version = 0

    def pull(self, agent: nn.Module) -> int:
        return self.version
