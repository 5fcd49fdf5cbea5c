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
    """The rooms of all processes, of which process `index` adds up a part, in the first one's room.

    Gradients are those of one process that adds one contribution after another, bit for bit.
    """

    def __init__(self, rooms: Sequence[Room], agent: Agent, index: int) -> None:
        self._rooms, self._index = rooms, index
        self._parameters = list(agent.parameters())

    def leave(self, own: PartialUpdate) -> PartialUpdate:
        """Leave this process's gradients and moments; return its update without these."""
        room = self._rooms[self._index]
        write_gradients(room.gradients, self._parameters)
        if own.moments is not None:
            room.moments.copy_(torch.as_tensor(own.moments))
        return replace(own, moments=None)

    def add_part(self, counted: bool) -> None:
        """Add up this process's part of the gradients that all have left, and of the moments if `counted`."""
        gradients, *others = (self._part(room.gradients) for room in self._rooms)
        for other in others:
            gradients.add_(other)
        if counted:
            moments, *more = (self._part(room.moments) for room in self._rooms)
            moments.copy_(merge(moments, *more))

    def _part(self, whole: Tensor) -> Tensor:
        """Return this process's part of the last dimension."""
        return whole.tensor_split(len(self._rooms), -1)[self._index]

    def take(self, own: PartialUpdate) -> PartialUpdate:
        """Let the agent's parameters have the sum of all gradients, and the first process's update, which is
        returned, the moments of all; the next `leave` overwrites both."""
        room = self._rooms[0]
        gradients, counts = gradient_views(room.gradients, self._parameters)
        for parameter, gradient, count in zip(self._parameters, gradients, counts.tolist(), strict=True):
            parameter.grad = gradient if count else None
        return replace(own, moments=room.moments) if own.num_steps and room.moments.numel() else own
