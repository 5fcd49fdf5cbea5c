"""Faults of cores, planted around a sound one: each class is one, `FAULTS` says as what it is found."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deltabeast.cores import Core
from deltabeast.cores.base import State


class Wrapped(Core):
    """A core inside, which faults are planted around."""

    def __init__(self, inner: Core) -> None:
        super().__init__(inner.input_size, inner.output_size)
        self.inner = inner

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return self.inner.initial_state(batch_size, device)

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self.inner.unroll(x, state, reset)

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self.inner.step(x, state, reset)


def each(change: Callable[[Tensor], Tensor], state: State) -> State:
    return tuple(map(change, state))


class StepWithoutResets(Wrapped):
    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self.inner.step(x, state, torch.zeros_like(reset))


class UnrollWithoutLaterResets(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self.inner.unroll(x, state, torch.cat([reset[:1], torch.zeros_like(reset[1:])]))


class UnrollWithoutFirstReset(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self.inner.unroll(x, state, torch.cat([torch.zeros_like(reset[:1]), reset[1:]]))


class UnrollWithoutLastReset(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        first = reset[:1] if len(reset) == 1 else torch.cat([reset[:-1], torch.zeros_like(reset[:1])])
        return self.inner.unroll(x, state, first)


class LateReset(Wrapped):
    """One that takes away what the first step of an episode wrote, too."""

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, state = self.inner.step(x, state, reset)
        return y, each(lambda part: part * (~reset).view(-1, *(1,) * (part.dim() - 1)), state)


class RowsExchanged(Wrapped):
    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, state = self.inner.step(x, state, reset)
        return y, each(lambda part: part.roll(1, 0), state)


class RowsMixed(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = self.inner.unroll(x, state, reset)
        return y + 0.01 * y.mean(1, keepdim=True), after


class FrozenRow(Wrapped):
    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = self.inner.step(x, state, reset)
        pairs = zip(after, state, strict=True)
        return y, tuple(torch.cat([new[:-1], old[-1:]]) if len(new) > 1 else new for new, old in pairs)


class FrozenMemory(Wrapped):
    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self.inner.step(x, state, reset)[0], state

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        steps = zip(x, reset, strict=True)
        return torch.stack([self.step(x_t, state, reset_t)[0] for x_t, reset_t in steps]), state


class UnreadMemory(Wrapped):
    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, _ = self.inner.step(x, state, torch.ones_like(reset))
        return y, self.inner.step(x, state, reset)[1]

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, _ = self.inner.unroll(x, state, torch.ones_like(reset))
        return y, self.inner.unroll(x, state, reset)[1]


class StateNotCarried(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, _ = self.inner.unroll(x, state, reset)
        return y, self.initial_state(x.shape[1])


class PartOfTheStateLost(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, (*others, last) = self.inner.unroll(x, state, reset)
        return y, (*others, torch.zeros_like(last))


class StateTakenOver(Wrapped):
    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = self.inner.step(x, state, reset)
        for old, new in zip(state, after, strict=True):
            old.copy_(new)
        return y, after


class LittleDrift(Wrapped):
    """Too little for float32 to show it."""

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = self.inner.step(x, state, reset)
        return y * (1 + 2e-6), after


class Begun(Wrapped):
    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return each(lambda part: part + 0.1, self.inner.initial_state(batch_size, device))


class Random(Wrapped):
    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = self.inner.step(x, state, reset)
        return y * (1 + 0.01 * torch.rand_like(y)), after


class ResetByMultiplying(Wrapped):
    """0 times nan is nan."""

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        begun = each(lambda part: part * (~reset).view(-1, *(1,) * (part.dim() - 1)), state)
        return self.inner.step(x, begun, torch.zeros_like(reset))


class OneOutput(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = self.inner.unroll(x, state, reset)
        return y[:1], after


class NotANumber(Wrapped):
    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = self.inner.unroll(x, state, reset)
        return torch.where(torch.arange(len(y)).view(-1, 1, 1) == 5, torch.nan, y), after


FAULTS = {
    StepWithoutResets: "a row's steps differ from those of its episodes alone",
    UnrollWithoutLaterResets: "an unroll differs from its steps",
    UnrollWithoutFirstReset: "an unroll of one step differs",
    UnrollWithoutLastReset: "an unroll differs from its steps",
    LateReset: "a row's steps differ from those of its episodes alone",
    RowsExchanged: "steps of several rows differ from those of each alone",
    RowsMixed: "an unroll differs from its steps",
    FrozenRow: "steps of several rows differ from those of each alone",
    FrozenMemory: "its state stays what it was",
    UnreadMemory: "its output does not depend on its state",
    StateNotCarried: "an unroll in two parts differs",
    PartOfTheStateLost: "an unroll in two parts differs",
    StateTakenOver: "a step writes into the state that it is given",
    LittleDrift: "an unroll differs from its steps",
    Begun: "its initial state is not zero",
    Random: "the same steps, computed again, differ",
    ResetByMultiplying: "steps after a state that was nan",
    OneOutput: "an unroll differs from its steps (shapes of output and state are [[1, ",
    NotANumber: "an unroll differs from its steps",
}
