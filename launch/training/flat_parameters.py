"""An agent's weights, or their gradients, as one array: how they travel between processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...agents.weights import all_weights


def views(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of a flat tensor `[N]` in the shapes of these, in their order."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def gradients_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """List what is in `grad`, zeros where nothing is, and last which parameters have one: 1 or 0, `[P]`."""
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    return [*gradients, torch.tensor([float(each.grad is not None) for each in parameters]).to(gradients[0])]


def gradient_views(flat: Tensor, parameters: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Split the flattened `gradients_of` into those of the parameters and how many processes had each."""
    numbers = len(flat) - len(parameters)
    return views(flat[:numbers], parameters), flat[numbers:]


def write_gradients(flat: Tensor, parameters: Sequence[Tensor]) -> None:
    """Copy the `gradients_of` parameters into one tensor."""
    *gradients, has_grad = gradients_of(parameters)
    places, counts = gradient_views(flat, parameters)
    for place, gradient in zip([*places, counts], [*gradients, has_grad], strict=True):
        place.copy_(gradient)


def flatten(agent: nn.Module) -> NDArray[np.float32]:
    """Copy parameters and statistics into one array, float32 `[N]`."""
    return torch.cat([weight.flatten() for weight in _as_float32(agent)]).cpu().numpy()


def unflatten(agent: nn.Module, weights: NDArray[np.float32]) -> None:
    """Copy what `flatten` returned into an agent of the same shapes."""
    # Arrays from an object store are read-only, which torch warns of: so this is a copy.
    flat, weights_there = torch.from_numpy(np.array(weights)), _as_float32(agent)
    for weight, view in zip(weights_there, views(flat, weights_there), strict=True):
        weight.copy_(view)


def _as_float32(agent: nn.Module) -> list[Tensor]:
    """List what actors need of an agent; numbers of 64 bits as two of 32, which are only copied."""
    return [weight.view(torch.float32) for weight in all_weights(agent)]


class FlatWeights:
    """The newest weights that an actor has received; its `Actor` pulls from here."""

    def __init__(self) -> None:
        self.version = -1
        self._fresh: NDArray[np.float32] | None = None

    def take(self, version: int, weights: NDArray[np.float32]) -> None:
        self.version, self._fresh = version, weights

    def pull(self, agent: nn.Module) -> int:
        """Copy the newest weights into `agent`, unless it has them, and return their version."""
        if self._fresh is not None:
            unflatten(agent, self._fresh)
            self._fresh = None  # and its place in the object store
        return self.version
