"""A player whose memory is operated on while it plays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...agents import AgentOutput
from ...cores import Core, State
from ...cores.surgery import add_noise, scale_writes
from .memory_ops import MemoryOp
from .play import Player


class AlteredMemory:
    """Plays as `player` does, with an operation on the memory of its core in every episode."""

    def __init__(self, player: Player, core: Core, op: MemoryOp) -> None:
        self.player, self.core, self.op = player, core, op
        self._step = min(op.step, 2**62)  # what int64 holds
        self._generators: list[torch.Generator] = []

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        """The player's, and how many steps each row is into its episode, `[B]`."""
        self.seed(range(batch_size))
        into = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return (*self.player.initial_state(batch_size, device), into)

    def seed(self, seeds: Sequence[int]) -> None:
        """Draw the noise of each row with a generator of its own."""
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State, greedy: bool = False
    ) -> tuple[AgentOutput, State]:
        *before, into = state
        into = into.masked_fill(done, 0)
        reset = done | self._wiped(into)
        output, after = self.player.act(observation, reward, reset, tuple(before), greedy)
        return output, (*self._operate(tuple(before), after, reset, into), into + 1)

    def _wiped(self, into: Tensor) -> Tensor:
        """Return which rows begin this step, `into` their episodes, from an empty state: bool `[B]`."""
        if self.op.kind == "wipe-every":
            return into % self._step == 0
        return (into == self._step) & (self.op.kind == "wipe")

    def _operate(self, before: State, after: State, reset: Tensor, into: Tensor) -> State:
        kind, amount = self.op.kind, self.op.amount
        now = into == self._step if kind == "undo" else into >= self._step
        if kind in ("freeze", "undo", "scale"):
            return scale_writes(self.core, before, after, reset, torch.where(now, amount, 1.0))
        if kind == "noise":
            return add_noise(self.core, after, amount * now, self._normal)
        return after

    def _normal(self, like: Tensor) -> Tensor:
        return torch.stack([torch.randn(like.shape[1:], generator=each) for each in self._generators]).to(
            like
        )
