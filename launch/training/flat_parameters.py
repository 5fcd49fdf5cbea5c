"""An agent's weights, or their gradients, as one array: how they travel between processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...agents.weights import all_weights


def views(flat: Tensor, agent: nn.Module) -> Sequence[Tensor]:
    """Views of a flat tensor `[N]` in the shapes of the agent's parameters, in their order."""
    parameters = list(agent.parameters())
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]


def flatten(agent: nn.Module) -> NDArray[np.float32]:
    """Copy parameters and statistics into one array, float32 `[N]`."""
    return torch.cat([weight.flatten() for weight in _as_float32(agent)]).cpu().numpy()


def unflatten(agent: nn.Module, weights: NDArray[np.float32]) -> None:
    """Copy what `flatten` returned into an agent of the same shapes."""
    # Arrays from an object store are read-only, which torch warns of: so this is a copy.
    flat = torch.from_numpy(np.array(weights))
    weights_there = _as_float32(agent)
    parts = flat.split([weight.numel() for weight in weights_there])
    for weight, part in zip(weights_there, parts, strict=True):
        weight.copy_(part.view_as(weight))


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
