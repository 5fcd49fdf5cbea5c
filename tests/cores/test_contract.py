"""Planted faults of cores are found and named; sound cores have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from planted_faults import FAULTS, Wrapped
from torch import Tensor

from deltabeast.cores import Core, contract, core_names, make_core
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


class Leaky(Core):
    """Its state begins in float32 whatever it reads, as that of the core in cores/README.md."""

    def __init__(self) -> None:
        super().__init__(INPUTS, INPUTS)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return (torch.zeros(batch_size, INPUTS),)

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        outputs = []
        for x_t, reset_t in zip(x, reset, strict=True):
            h = torch.lerp(x_t, h.masked_fill(reset_t.unsqueeze(-1), 0.0), 0.5)  # takes one dtype
            outputs.append(h)
        return torch.stack(outputs), (h,)


def test_a_state_that_begins_in_float32(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a core is not taken for one that computes in float32 alone."""
    checked, check = [], contract._violations

    def note(core: Core, x: Tensor, allowed: float) -> list[str]:
        checked.append(x.dtype)
        return check(core, x, allowed)

    monkeypatch.setattr(contract, "_violations", note)
    assert violations(Leaky(), inputs()) == [] and checked == [torch.float64, torch.float32]


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
    assert found[0] == "an unroll differs from its steps (step 5, row 2, by 5,000,000 times what is allowed)"


def test_the_episodes_of_the_check() -> None:
    reset = resets(7, 3)
    assert [column.nonzero().flatten().tolist() for column in reset.T] == [[0, 1, 2], [0, 4], [0, 6]]


@pytest.mark.parametrize("shape", [(3, 4, INPUTS), (9, 1, INPUTS)])
def test_too_little_to_see_anything(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="give at least 4 steps and 2 rows"):
        violations(core_of("lstm"), torch.zeros(shape))
