"""Unrolls: what actors hand to the learner, and how they are cut and joined into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, get_type_hints

import torch
from torch import Tensor

from ..cores.base import State, warn_of_new_name
from .episodes import Episodes, join_episodes
from .truncations import Truncations, join_truncations


@dataclass(frozen=True)
class Unroll:
    """T consecutive steps of B environments, and the observation that follows, for the bootstrap value.

    Action t was chosen on `observation[t]`; its reward is `reward[t + 1]`. `done[t]` marks `observation[t]`
    as the first of an episode.

    To record another tensor per step, add a field before `state`, allocate it in `empty` and fill it in a
    method that `Actor.collect` calls.
    """

    observation: Tensor
    """Observations `[T + 1, B, ...]`: uint8 images or float vectors."""
    reward: Tensor
    """Unscaled and unclipped rewards, float32 `[T + 1, B]`."""
    done: Tensor
    """Whether the observation is the first of an episode: bool `[T + 1, B]`."""
    action: Tensor
    """Actions, int64 `[T, B]`."""
    behavior_logits: Tensor
    """Logits of the policy that acted, float32 `[T, B, A]`."""
    forced: Tensor
    """Whether the environment overrode the action, as to press FIRE for a new life: bool `[T, B]`."""
    truncation_bootstrap: Tensor
    """γ V(final observation) where step t was truncated (V itself in a forced reset step), else 0: float32
    `[T, B]`. Zeros until the learner fills it in (truncation_bootstrap.py)."""
    state: State
    """The core's state before `observation[0]`, tensors `[B, ...]`."""
    version: int = 0
    """Weight version that acted: the number of updates applied to it before."""
    episodes: Episodes = field(default_factory=Episodes)
    """Scores of the episodes that ended in the unroll."""
    truncations: Truncations | None = None
    """Truncated steps with their final observations; None if there are none."""
    counted: Unroll | Literal["itself"] | None = "itself"
    """What counts in steps, episodes and running statistics when this one has been learned from: itself;
    where some are replayed (replay.py) the fresh ones; for the last minibatch of a batch (reuse.py) what
    counts of the batch, for earlier ones None."""
    origin: Tensor | None = None
    """For each environment its number and that of the unroll, counted from its first: int64 `[B, 2]`, on the
    CPU; None if unknown. An unroll continues that of the same environment with the number before."""
    replayed: Tensor | None = None
    """For each environment `version` if it is replayed, -1 if it is fresh: int64 `[B]`, on the CPU; None if
    all are fresh."""

    @classmethod
    def empty(cls, length: int, observation: Tensor, num_actions: int, state: State, version: int) -> Unroll:
        """Allocate an unroll of `length` steps to be filled, for observations like this one, `[B, ...]`."""
        T, B, device = length, len(observation), observation.device
        return cls(
            observation=observation.new_empty((T + 1, *observation.shape)),
            reward=torch.empty((T + 1, B), device=device),
            done=torch.empty((T + 1, B), dtype=torch.bool, device=device),
            action=torch.empty((T, B), dtype=torch.int64, device=device),
            behavior_logits=torch.empty((T, B, num_actions), device=device),
            forced=torch.zeros((T, B), dtype=torch.bool, device=device),
            truncation_bootstrap=torch.zeros((T, B), device=device),
            state=state,
            version=version,
        )

    @property
    def num_steps(self) -> int:
        """Number of agent steps: T times B."""
        return self.action.numel()

    @property
    def num_envs(self) -> int:
        """Number of environments: B."""
        return self.action.shape[1]

    def columns(self) -> int:
        """The name of `num_envs` in version 0.2."""
        warn_of_new_name("columns()", "num_envs")
        return self.num_envs

    def tensors(self) -> list[Tensor]:
        """List all tensors in the order of the fields, the state's last."""
        return [*(getattr(self, name) for name in PER_STEP), *self.state]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], version: int = 0, episodes: Episodes | None = None) -> Unroll:
        """Build an unroll from its `tensors()`."""
        per_step: dict[str, Any] = dict(zip(PER_STEP, tensors, strict=False))
        state = tuple(tensors[len(PER_STEP) :])
        return cls(**per_step, state=state, version=version, episodes=episodes or Episodes())

    def map(self, function: Callable[..., Tensor], *others: Unroll) -> Unroll:
        """Call `function(batch_dim, tensor, *tensors of the others)` for each tensor.

        `batch_dim` is the dimension of the environments: 1 where time comes first, 0 for the state. The
        result has this unroll's version and episodes; of truncations and the fields below them, nothing.
        """
        batch_dims = [1] * len(PER_STEP) + [0] * len(self.state)
        together = zip(batch_dims, self.tensors(), *(other.tensors() for other in others), strict=True)
        return Unroll.of([function(*arguments) for arguments in together], self.version, self.episodes)


PER_STEP = tuple(name for name, kind in get_type_hints(Unroll).items() if kind is Tensor)
"""The fields that have one entry a step, `[T or T + 1, B, ...]`."""


def split(unroll: Unroll, batch_size: int) -> list[Unroll]:
    """Cut an unroll of many environments into unrolls of `batch_size` environments; its episodes go with the
    first."""
    if unroll.num_envs == batch_size:
        return [unroll]

    def cut(start: int) -> Unroll:
        part = unroll.map(lambda dim, x: x.narrow(dim, start, min(batch_size, x.shape[dim] - start)))
        truncations = unroll.truncations and unroll.truncations.narrow(start, part.num_envs)
        origin = None if unroll.origin is None else unroll.origin[start : start + part.num_envs]
        episodes = part.episodes if start == 0 else Episodes()
        return replace(part, truncations=truncations, origin=origin, episodes=episodes)

    return [cut(start) for start in range(0, unroll.num_envs, batch_size)]


def join(unrolls: Sequence[Unroll]) -> Unroll:
    """Put unrolls side by side in one batch, with the oldest `version` and all episodes."""
    first, *others = unrolls
    if not others:
        return first
    starts = accumulate((unroll.num_envs for unroll in unrolls), initial=0)
    origins = [unroll.origin for unroll in unrolls if unroll.origin is not None]
    return replace(
        first.map(lambda dim, *xs: torch.cat(xs, dim), *others),
        version=min(unroll.version for unroll in unrolls),
        episodes=join_episodes([unroll.episodes for unroll in unrolls]),
        truncations=join_truncations(zip(starts, (unroll.truncations for unroll in unrolls), strict=False)),
        origin=torch.cat(origins) if len(origins) == len(unrolls) else None,
    )
