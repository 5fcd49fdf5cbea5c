"""All weights of a version in one array, which the object store can share without copying."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


def flatten(agent: nn.Module) -> NDArray[np.float32]:
    """Concatenate all parameters, float32 `[N]`, in new memory."""
    with torch.no_grad():
        return torch.cat([p.detach().flatten() for p in agent.parameters()]).cpu().numpy()


def unflatten(agent: nn.Module, weights: NDArray[np.float32]) -> None:
    """Copy the output of `flatten` into an agent of the same shapes."""
    parameters = [p.detach() for p in agent.parameters()]
    parts = np.split(weights, np.cumsum([p.numel() for p in parameters])[:-1])
    for parameter, part in zip(parameters, parts, strict=True):
        # Out of the object store arrays are read-only, which torch warns of.
        parameter.copy_(torch.from_numpy(np.array(part)).view(parameter.shape))


class FlatWeights:
    """The newest weights that an actor has received; its `Actor` pulls from here."""

    def __init__(self) -> None:
        self.version = -1
        self._fresh: NDArray[np.float32] | None = None

    def take(self, version: int, weights: NDArray[np.float32]) -> None:
        self.version, self._fresh = version, weights

    def pull(self, agent: nn.Module) -> int:
        """Copy the newest weights into `agent`, if it has not had them yet, and return their version."""
        if self._fresh is not None:
            unflatten(agent, self._fresh)
            self._fresh = None  # frees its place in the object store
        return self.version
