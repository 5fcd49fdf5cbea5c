"""What an actor hands to the learner: T steps of some environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..cores import State


@dataclass(frozen=True)
class Episodes:
    """Scores of the episodes that ended during an unroll; lengths in agent steps."""

    life_returns: list[float] = field(default_factory=list)
    game_returns: list[float] = field(default_factory=list)
    game_lengths: list[int] = field(default_factory=list)
    score_wraps: int = 0
    """scores that overflowed the game's counter: their games are not in the lists"""


@dataclass(frozen=True)
class Unroll:
    """T consecutive steps of B environments, and the observation that follows, for the bootstrap value.

    Action t was chosen on `frame[t]`; its reward is `reward[t + 1]`. `done[t]` marks `frame[t]` as the
    first of an episode. `state` is the core's state before it reads `frame[0]`.
    """

    frame: Tensor
    """`[T + 1, B, ...]`"""
    reward: Tensor
    """float32 `[T + 1, B]`, unclipped"""
    done: Tensor
    """bool `[T + 1, B]`"""
    action: Tensor
    """int64 `[T, B]`"""
    behavior_logits: Tensor
    """float32 `[T, B, A]`"""
    forced: Tensor
    """bool `[T, B]`: the environment ignored the action (it pressed FIRE to serve a new life)"""
    state: State
    """`[B, ...]` each"""
    version: int
    """updates behind the weights that acted"""
    episodes: Episodes = field(default_factory=Episodes)

    @property
    def num_steps(self) -> int:
        """Agent steps: T times B."""
        return self.action.numel()

    def tensors(self) -> list[Tensor]:
        """What an update reads, in the order of the fields above; the state's last."""
        return [
            self.frame,
            self.reward,
            self.done,
            self.action,
            self.behavior_logits,
            self.forced,
            *self.state,
        ]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Unroll:
        """The unroll of these `tensors`; nothing is known of its version and episodes."""
        frame, reward, done, action, behavior_logits, forced, *state = tensors
        return cls(frame, reward, done, action, behavior_logits, forced, tuple(state), version=0)

    def columns(self) -> int:
        return self.action.shape[1]


def split(unroll: Unroll, batch_size: int) -> list[Unroll]:
    """Cut an unroll of many environments into unrolls of `batch_size`, its episodes with the first."""
    if unroll.columns() == batch_size:
        return [unroll]
    return [
        replace(
            unroll,
            frame=unroll.frame[:, cut],
            reward=unroll.reward[:, cut],
            done=unroll.done[:, cut],
            action=unroll.action[:, cut],
            behavior_logits=unroll.behavior_logits[:, cut],
            forced=unroll.forced[:, cut],
            state=tuple(part[cut] for part in unroll.state),
            episodes=unroll.episodes if cut.start == 0 else Episodes(),
        )
        for cut in (slice(i, i + batch_size) for i in range(0, unroll.columns(), batch_size))
    ]


def join(unrolls: Sequence[Unroll]) -> Unroll:
    """Put unrolls side by side in one batch. `version` is the oldest; episodes are put together."""
    if len(unrolls) == 1:
        return unrolls[0]

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(unroll, name) for unroll in unrolls], dim=1)

    return Unroll(
        frame=cat("frame"),
        reward=cat("reward"),
        done=cat("done"),
        action=cat("action"),
        behavior_logits=cat("behavior_logits"),
        forced=cat("forced"),
        state=tuple(torch.cat(parts) for parts in zip(*(u.state for u in unrolls), strict=True)),
        version=min(unroll.version for unroll in unrolls),
        episodes=Episodes(
            life_returns=[score for u in unrolls for score in u.episodes.life_returns],
            game_returns=[score for u in unrolls for score in u.episodes.game_returns],
            game_lengths=[length for u in unrolls for length in u.episodes.game_lengths],
            score_wraps=sum(u.episodes.score_wraps for u in unrolls),
        ),
    )
