"""The final observations of truncated episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Truncations(NamedTuple):
    """The n truncated steps of an unroll, in any order. A step that also terminated is not among them."""

    step: Tensor
    """Index t of the episode's last step: int64 `[n]`, on the CPU."""
    env: Tensor
    """Index b of its environment: int64 `[n]`, on the CPU."""
    observation: Tensor
    """The final observation `[n, ...]`, in whose place the unroll has the next episode's first."""

    def narrow(self, start: int, num_envs: int) -> Truncations | None:
        """Select those of `num_envs` environments from `start` on, renumbered from 0; None if none."""
        inside = (self.env >= start) & (self.env < start + num_envs)
        if not inside.any():
            return None
        return Truncations(self.step[inside], self.env[inside] - start, self.observation[inside])

    def select(self, envs: Tensor) -> Truncations | None:
        """Select those of some environments, int64 `[n]`, renumbered by their places there; None if none."""
        which, place = (self.env.unsqueeze(1) == envs).nonzero(as_tuple=True)
        if not len(which):
            return None
        return Truncations(self.step[which], place, self.observation[which])


def join_truncations(several: Iterable[tuple[int, Truncations | None]]) -> Truncations | None:
    """Join the truncations of unrolls side by side, each with the index of its first environment; None if
    there are none."""
    shifted = [each._replace(env=each.env + start) for start, each in several if each is not None]
    return Truncations(*map(torch.cat, zip(*shifted, strict=True))) if shifted else None
