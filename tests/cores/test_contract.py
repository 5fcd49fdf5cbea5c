"""Planted faults of cores are found and named; sound cores have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deltabeast.cores import Core, core_names, make_core
from deltabeast.cores.base import State
from deltabeast.cores.contract import resets, violations

T, B, INPUTS = 8, 3, 5
SIZES = {"hidden_size": 8, "num_heads": 2, "ff_size": 8}
FAULTY = ("rdn", "delta_net", "kda", "transformer", "lstm")
OTHERS = {
    "lstm": {"hidden_size": 8},
    "gru": {"hidden_size": 8},
    "feedforward": {},
    "gated_feedforward": {},
    "hybrid": {**SIZES, "layers": "kda,gtrxl"},
}
"""Options of the cores that are none of several equal layers."""


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


def inputs() -> Tensor:
    return torch.randn(T, B, INPUTS)


def core_of(name: str) -> Core:
    return make_core(name, INPUTS, **OTHERS.get(name, {**SIZES, "num_layers": 1}))


def cases() -> list[Any]:
    """Each fault in each core; those that another core shows, too, are long."""
    return [
        pytest.param(fault, name, marks=[] if i % len(FAULTY) == n else pytest.mark.long)
        for i, fault in enumerate(FAULTS)
        for n, name in enumerate(FAULTY)
    ]


@pytest.mark.parametrize(("fault", "name"), cases())
def test_a_planted_fault_is_found(fault: type[Wrapped], name: str, seed: int) -> None:
    found = violations(fault(core_of(name)), inputs())
    assert any(line.startswith(FAULTS[fault]) for line in found), found


@pytest.mark.parametrize(
    "name",
    [
        name if name in (*FAULTY, "feedforward", "hybrid") else pytest.param(name, marks=pytest.mark.long)
        for name in core_names()
    ],
)
def test_a_sound_core_has_none(name: str, seed: int) -> None:
    assert violations(core_of(name), inputs()) == []


def test_a_core_for_float32_alone(seed: int) -> None:
    class Single(Wrapped):
        def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
            return self.inner.step(x.float(), state, reset)

    assert violations(Single(core_of("lstm")), inputs()) == []


class Counter(Core):
    """Its state has a number a row, one of them whole."""

    def __init__(self, lose: bool) -> None:
        super().__init__(INPUTS, INPUTS)
        self.lose = lose

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return torch.zeros(batch_size), torch.zeros(batch_size, dtype=torch.int64)

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        total, steps = state
        outputs = []
        for x_t, reset_t in zip(x, reset, strict=True):
            total = torch.where(reset_t, 0.0, total) + x_t.sum(-1)
            steps = torch.where(reset_t, 0, steps) + 1
            outputs.append(x_t + (total / steps).unsqueeze(-1))
        return torch.stack(outputs), (total * (len(x) == 1 or not self.lose), steps)


def test_a_state_of_one_number_a_row(seed: int) -> None:
    assert violations(Counter(lose=False), inputs()) == []
    assert any("last state, tensor 0, row 0" in line for line in violations(Counter(lose=True), inputs()))


def test_where_and_how_much(seed: int) -> None:
    class Later(Wrapped):
        def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
            y, after = self.inner.unroll(x, state, reset)
            y = y.clone()
            y[5:, 2] += 0.5 * y.abs().max()
            return y, after

    found = violations(Later(core_of("lstm")), inputs())
    assert found[0] == "an unroll differs from its steps (step 5, row 2, by 500 times what is allowed)"


def test_the_episodes_of_the_check() -> None:
    reset = resets(7, 3)
    assert [column.nonzero().flatten().tolist() for column in reset.T] == [[0, 1, 2], [0, 4], [0, 6]]


@pytest.mark.parametrize("shape", [(3, 4, INPUTS), (9, 1, INPUTS)])
def test_too_little_to_see_anything(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="give at least 4 steps and 2 rows"):
        violations(core_of("lstm"), torch.zeros(shape))
