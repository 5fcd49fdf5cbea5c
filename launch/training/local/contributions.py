"""What processes that share an update leave of it in memory that all see, and how they add it up together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ....agents import Agent, PartialUpdate
from ....agents.normaliser import merge
from ..flat_parameters import gradient_views, write_gradients
from .shared import Room


class Contributions:
    """The rooms of all processes, of which process `index` adds up a part.

    The sums are those of one process that adds one contribution after another, bit for bit: by entries, each
    of which one process computes.
    """

    def __init__(self, rooms: Sequence[Room], agent: Agent, index: int) -> None:
        """`agent` has its weights and statistics in shared memory."""
        self._rooms, self._agent, self._index = rooms, agent, index
        self._parameters = list(agent.parameters())

    def leave(self, own: PartialUpdate) -> PartialUpdate:
        """Leave this process's gradients and moments; return its update without these."""
        room = self._rooms[self._index]
        write_gradients(room.gradients, self._parameters)
        if own.moments is not None:
            room.moments.copy_(torch.as_tensor(own.moments))
        return replace(own, moments=None)

    def add_part(self, counted: bool) -> None:
        """Add up this process's part of what all have left: gradients in the first one's room, moments, if
        `counted`, in the agent's statistics."""
        gradients, *others = (self._part(room.gradients) for room in self._rooms)
        for other in others:
            gradients.add_(other)
        if counted and self._agent.normaliser is not None:
            statistics = self._part(self._agent.normaliser.statistics)
            statistics.copy_(merge(statistics, *(self._part(room.moments) for room in self._rooms)))

    def _part(self, whole: Tensor) -> Tensor:
        """Return this process's part of the last dimension."""
        return whole.tensor_split(len(self._rooms), -1)[self._index]

    def take(self) -> None:
        """Let the agent's parameters have the sum of all gradients, until the next `leave`."""
        gradients, counts = gradient_views(self._rooms[0].gradients, self._parameters)
        for parameter, gradient, count in zip(self._parameters, gradients, counts.tolist(), strict=True):
            parameter.grad = gradient if count else None
