"""A player whose memory is operated on while it plays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from ...agents import AgentOutput
from ...cores import Core, State
from ...cores.linear_form import DeltaForm, LinearForm
from ...cores.observe import watch_traces
from ...cores.surgery import add_noise, empty_forms, erase, in_rows, insert, replace_memory, scale_writes
from .memory_ops import MemoryOp
from .play import Player

_KEYED = ("erase", "insert")


class AlteredMemory:
    """Plays as `player` does, with an operation on the memory of its core in every episode.

    `donor` is the other agent of transplant: it is given the same observations, rewards and ends of episodes.
    """

    def __init__(self, player: Player, core: Core, op: MemoryOp, donor: Player | None = None) -> None:
        self.player, self.core, self.op, self.donor = player, core, op, donor
        self._step, self._source = (min(step, 2**62) for step in (op.step, op.source))  # what int64 holds
        self._generators: list[torch.Generator] = []

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        """The player's, how many steps each row is into its episode, `[B]`, and what is saved until T.

        That is a snapshot, the donor's state, or keys or values of step S, layer by layer.
        """
        self.seed(range(batch_size))
        state = self.player.initial_state(batch_size, device)
        self._size = len(state)
        into = torch.zeros(batch_size, dtype=torch.int64, device=device)
        if self.donor is not None:
            return (*state, into, *self.donor.initial_state(batch_size, device))
        forms = empty_forms(self.core, batch_size, device) if self.op.kind in _KEYED else []
        return (*state, into, *self._to_save(state, forms))

    def seed(self, seeds: Sequence[int]) -> None:
        """Draw the noise of each row with a generator of its own."""
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State, greedy: bool = False
    ) -> tuple[AgentOutput, State]:
        before, into, saved = state[: self._size], state[self._size], state[self._size + 1 :]
        into = into.masked_fill(done, 0)
        reset = done | self._wiped(into)
        with self._watched(into) as forms:
            output, after = self.player.act(observation, reward, reset, before, greedy)
        if self.donor is not None:
            _, saved = self.donor.act(observation, reward, done, saved, greedy)
        elif forms or self.op.kind == "restore":
            rows = into == self._source
            pairs = zip(self._to_save(after, forms), saved, strict=True)
            saved = tuple(in_rows(rows, new, old) for new, old in pairs)
        after = self._operate(before, after, saved, forms, reset, into)
        return output, (*after, into + 1, *saved)

    def _to_save(self, state: State, forms: Sequence[LinearForm | None]) -> State:
        """Select what is saved of a step that left this state."""
        writes = [form.writes for form in forms if isinstance(form, DeltaForm)]
        match self.op.kind:
            case "restore":
                return state
            case "erase":
                return tuple(each.k[-1] for each in writes)
            case "insert":
                return tuple(each.u[-1] for each in writes)
        return ()

    def _wiped(self, into: Tensor) -> Tensor:
        """Return which rows begin this step, `into` their episodes, from an empty state: bool `[B]`."""
        if self.op.kind == "wipe-every":
            return into % self._step == 0
        return (into == self._step) & (self.op.kind == "wipe")

    @contextmanager
    def _watched(self, into: Tensor) -> Iterator[list[LinearForm | None]]:
        """Yield a list for each layer's form of this step; it stays empty where no key or value is used."""
        forms: list[LinearForm | None] = []
        used = (into == self._source) | (into == self._step)
        with ExitStack() as stack:
            if self.op.kind in _KEYED and bool(used.any()):
                collect = lambda _, memory, trace: forms.append(memory.linear_form(trace))  # noqa: E731
                stack.enter_context(watch_traces(self.core, collect))
            yield forms

    def _operate(
        self,
        before: State,
        after: State,
        saved: State,
        forms: Sequence[LinearForm | None],
        reset: Tensor,
        into: Tensor,
    ) -> State:
        kind, amount = self.op.kind, self.op.amount
        rows, since = into == self._step, into >= self._step
        match kind:
            case "freeze" | "undo" | "scale":
                factor = torch.where(rows if kind == "undo" else since, amount, 1.0)
                return scale_writes(self.core, before, after, reset, factor)
            case "noise":
                return add_noise(self.core, after, amount * since, self._normal)
            case "restore" | "transplant":
                return replace_memory(self.core, after, saved, rows)
            case "erase" if forms:
                return erase(self.core, after, saved, rows)
            case "insert" if forms:
                keys = [form.writes.k[-1] for form in forms if isinstance(form, DeltaForm)]
                return insert(self.core, after, keys, saved, rows)
        return after

    def _normal(self, like: Tensor) -> Tensor:
        return torch.stack([torch.randn(like.shape[1:], generator=each) for each in self._generators]).to(
            like
        )
