"""State-reset ablation: how well a player does with its state reset every N steps of an episode."""

from __future__ import annotations

import torch
from torch import Tensor

from ...agents import AgentOutput
from ...cores import State
from .play import Player

_NAMED = "forgets every "


class StateResets:
    """Plays as `player` does, but every `every` agent steps of an episode as if one had just begun."""

    def __init__(self, player: Player, every: int) -> None:
        self.player, self.every = player, every

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        """The player's, and how many steps each row is into its episode, `[B]`."""
        into = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return (*self.player.initial_state(batch_size, device), into)

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State, greedy: bool = False
    ) -> tuple[AgentOutput, State]:
        *memory, into = state
        into = into.masked_fill(done, 0)
        reset = into % self.every == 0
        output, after = self.player.act(observation, reward, reset, tuple(memory), greedy)
        return output, (*after, into + 1)


def name_of(every: int) -> str:
    """Name such a player among the results of an evaluation."""
    return f"{_NAMED}{every}"


def every_of(name: str) -> int | None:
    """Return every how many steps a player of an evaluation's results is reset; None if it is not."""
    every = name.removeprefix(_NAMED)
    return int(every) if every != name else None
