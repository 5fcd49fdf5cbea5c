"""Tensors that several processes see: views of one file without a name, which each of them maps."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ....agents.shapes import count_numbers
from ...processes.nameless import nameless_file

_ALIGNMENT = 64
"""Bytes between the beginnings of two tensors are a multiple of this: a cache line."""


class Room(NamedTuple):
    """Where one process leaves what it computed of an update."""

    gradients: Tensor
    """float32 `[N + P]`: N numbers in P parameters, as `flat_parameters.gradients_of` lists them"""
    moments: Tensor
    """of the D entries of observations, float64 `[3, D]`; D is 0 for an agent that does not normalise them"""


def new_file(agent: nn.Module, rooms: int) -> int:
    """Return the descriptor of a file with room for the agent's tensors, and `rooms`.

    Raises OSError if there is no memory for it.
    """
    return nameless_file(_rooms_begin(agent) + rooms * sum(_room_bytes(agent)))


class Shared:
    """The tensors in a file, which `agent` describes. Its descriptor may be closed once it is mapped here."""

    def __init__(self, file: int, agent: nn.Module) -> None:
        # Views keep the mapping: no buffer of Python's is closed while it is used.
        self._bytes = torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
        self._agent = agent

    def publish(self) -> None:
        """Copy the agent's tensors into the file, where it has them from now on."""
        for view, tensor in zip(self._views(), _tensors(self._agent), strict=True):
            view.copy_(tensor)
            tensor.data = view

    def adopt(self) -> None:
        """Let the agent have the tensors that are in the file."""
        for view, tensor in zip(self._views(), _tensors(self._agent), strict=True):
            tensor.data = view

    def rooms(self, count: int) -> Sequence[Room]:
        """Return the rooms of all processes."""
        sizes, begin = _room_bytes(self._agent), _rooms_begin(self._agent)
        rows = self._bytes[begin : begin + count * sum(sizes)].view(count, -1).unbind()
        parts = [row.split(sizes) for row in rows]
        return [
            Room(
                gradients.view(torch.float32)[: _gradient_numbers(self._agent)],
                moments.view(torch.float64)[: 3 * _entries(self._agent)].view(3, -1),
            )
            for gradients, moments in parts
        ]

    def _views(self) -> Sequence[Tensor]:
        views, begin = [], 0
        for tensor in _tensors(self._agent):
            part = self._bytes[begin : begin + tensor.nbytes]
            views.append(part.view(tensor.dtype).view(tensor.shape))
            begin += _aligned(tensor.nbytes)
        return views


def _tensors(agent: nn.Module) -> Sequence[Tensor]:
    return [*agent.parameters(), *agent.buffers()]


def _room_bytes(agent: nn.Module) -> list[int]:
    """Return the bytes of gradients and of moments."""
    return [_aligned(4 * _gradient_numbers(agent)), _aligned(8 * 3 * _entries(agent))]


def _entries(agent: nn.Module) -> int:
    """Count the entries of observations of which the agent has statistics."""
    normaliser = getattr(agent, "normaliser", None)
    return normaliser.statistics.shape[1] if normaliser is not None else 0


def _gradient_numbers(agent: nn.Module) -> int:
    """Count what `flat_parameters.gradients_of` lists."""
    parameters = list(agent.parameters())
    return count_numbers(parameters) + len(parameters)


def _rooms_begin(agent: nn.Module) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in _tensors(agent))


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT
