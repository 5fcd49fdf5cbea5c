"""Tensors that several processes see: views of one file without a name, which each of them maps."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ....agents.shapes import count_numbers
from ...processes.nameless import nameless_file

_ALIGNMENT = 64
"""Bytes between the beginnings of two tensors are a multiple of this: a cache line."""


def new_file(agent: nn.Module, gradients: int) -> int:
    """Return the descriptor of a file with room for the agent's tensors and `gradients` times its gradients.

    Raises OSError if there is no memory for it.
    """
    return nameless_file(_gradients_begin(agent) + gradients * _gradient_bytes(agent))


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

    def gradients(self, count: int) -> Sequence[Tensor]:
        """Return the room for the gradients of each process, float32 `[N + P]`: N numbers in P parameters."""
        size = _gradient_bytes(self._agent)
        begin = _gradients_begin(self._agent)
        places = self._bytes[begin : begin + count * size].view(torch.float32).view(count, -1)
        return places[:, : _gradient_numbers(self._agent)].unbind()

    def _views(self) -> Sequence[Tensor]:
        views, begin = [], 0
        for tensor in _tensors(self._agent):
            part = self._bytes[begin : begin + tensor.nbytes]
            views.append(part.view(tensor.dtype).view(tensor.shape))
            begin += _aligned(tensor.nbytes)
        return views


def _tensors(agent: nn.Module) -> Sequence[Tensor]:
    return [*agent.parameters(), *agent.buffers()]


def _gradient_bytes(agent: nn.Module) -> int:
    return _aligned(4 * _gradient_numbers(agent))


def _gradient_numbers(agent: nn.Module) -> int:
    """Count what `flat_parameters.gradients_of` lists."""
    parameters = list(agent.parameters())
    return count_numbers(parameters) + len(parameters)


def _gradients_begin(agent: nn.Module) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in _tensors(agent))


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT
