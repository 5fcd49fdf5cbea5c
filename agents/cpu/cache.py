"""Activations of an actor's forward pass that the learner, with the same weights, reuses."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.native.forward_cache import ForwardCache
from ..unroll import Unroll


class CacheSpec(NamedTuple):
    """Which activations an actor caches for the learner."""

    trunk: int = 0
    """Number of most recent unrolls whose trunk features, with autograd graph, are cached; 0 for none."""
    projection: bool = False
    """Whether the outputs of the stem's projection are cached."""
    core: bool = False
    """Whether the core's activations are cached."""


NO_CACHE = CacheSpec()


@dataclass
class ActivationCache:
    """Activations of the steps of one unroll."""

    unroll: Unroll | None = None
    """The unroll whose steps these are; None if nothing is cached."""
    trunk: list[Tensor] = field(default_factory=list)
    """Trunk features `[B, n]`, one tensor per observation."""
    projection: ForwardCache | None = None
    """Outputs of the stem's projection; None if they are not cached."""
    core: ForwardCache | None = None
    """Activations of the core; None if they are not cached."""
    weights: list[int] = field(default_factory=list)
    """Version counters of the agent's weights, by which PyTorch counts in-place changes."""
    _inputs: list[int] = field(default_factory=list)

    def seal(self) -> None:
        """Record that the unroll is complete: once a tensor of it changes, `is_of` is false."""
        if self.unroll is not None:
            self._inputs = _versions(_inputs(self.unroll))

    def is_of(self, batch: Unroll) -> bool:
        """Return whether a batch is this unroll, unchanged since `seal`."""
        if self.unroll is None:
            return False
        ours, theirs = _inputs(self.unroll), _inputs(batch)
        same = len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))
        return same and self._inputs == _versions(theirs)


def _inputs(unroll: Unroll) -> list[Tensor]:
    return [unroll.observation, unroll.reward, unroll.done, unroll.action, *unroll.state]


def _versions(tensors: list[Tensor]) -> list[int]:
    return [0 if x.is_inference() else x._version for x in tensors]


def joined_trunk(caches: Sequence[ActivationCache], batch: Unroll, weights: list[int]) -> Tensor | None:
    """Return the trunk features `[(T + 1) B, n]` of a batch that is these unrolls side by side; None if it is
    not, or the agent's weights, now of these versions, have changed.
    """
    unrolls = [cache.unroll for cache in caches if cache.unroll is not None and cache.trunk]
    if not unrolls or len(unrolls) < len(caches) or any(cache.weights != weights for cache in caches):
        return None
    if len(caches) == 1:
        same = caches[0].is_of(batch)
    else:
        sizes = [unroll.num_envs for unroll in unrolls]
        same = sum(sizes) == batch.num_envs and all(
            torch.equal(part, unroll.observation)
            for part, unroll in zip(batch.observation.split(sizes, 1), unrolls, strict=True)
        )
    if not same:
        return None
    steps = zip(*(cache.trunk for cache in caches), strict=True)
    return torch.cat([features for step in steps for features in step])
