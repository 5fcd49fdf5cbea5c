"""The episodes that end while an actor collects an unroll."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Episodes:
    """Scores and lengths of ended episodes, in the order in which they ended; an actor adds to them."""

    life_returns: list[float] = field(default_factory=list)
    game_returns: list[float] = field(default_factory=list)
    game_lengths: list[int] = field(default_factory=list)
    """Lengths of ended games, in agent steps."""
    score_wraps: int = 0
    """Number of games whose score overflowed the game's counter; they are not in the lists."""
    notes: list[str] = field(default_factory=list)
    """Messages of the environments to the user, each once."""
    return_moments: list[NDArray[np.float64]] = field(default_factory=list)
    """Moments of each actor's discounted returns, `[3, 1]`; empty unless rewards are normalised."""

    def record(self, info: Mapping[str, Any]) -> None:
        """Add the episodes that ended in a step, from the `info` of Gymnasium's vector interface."""
        self.life_returns.extend(_ended(info, "life_return"))
        self.game_returns.extend(_ended(info, "game_return"))
        self.game_lengths.extend(_ended(info, "game_length"))
        if "score_wraps" in info:
            self.score_wraps += int(info["score_wraps"].sum())
        self.notes.extend(info.get("notes", ()))


def _ended(info: Mapping[str, Any], key: str) -> list[Any]:
    mask: NDArray[np.bool_] | None = info.get(f"_{key}")
    if mask is None or not np.count_nonzero(mask):
        return []
    return list(info[key][mask].tolist())


def join_episodes(several: Sequence[Episodes]) -> Episodes:
    """Add up the counts and put the lists one after another."""
    joined = Episodes()
    for one in several:
        for name, more in vars(one).items():
            setattr(joined, name, getattr(joined, name) + more)
    return joined
