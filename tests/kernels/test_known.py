"""A forward pass kept step by step: backward from it is autograd's in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fastweight_helpers import assert_near, integer, make_reset
from torch import Tensor

from deltabeast.cores import Core, Kept, State, make_core
from deltabeast.kernels.native import compiling

CORES = ("linear_transformer", "delta_net", "delta_rnn", "rdn", "gated_delta_net", "lstm")
pytestmark = pytest.mark.skipif(
    compiling.problem("dense.c", "LANES=8") is not None, reason="no C compiler builds dense.c"
)


def made(name: str, rows: int, steps: int) -> tuple[Core, Tensor, State, Tensor]:
    """Make a core whose every weight matters, and inputs of an unroll."""
    options: dict[str, Any] = {} if name == "lstm" else {"num_heads": 3, "ff_size": 9}
    core = make_core(name, integer(1, 40), hidden_size=24, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    state = tuple(torch.randn_like(part) for part in core.initial_state(rows))
    return core, torch.randn(steps, rows, core.input_size), state, make_reset("random", steps, rows)


@torch.no_grad()
def keep(core: Core, x: Tensor, state: State, reset: Tensor) -> Kept:
    kept = core.new_kept(*x.shape[:2])
    assert kept is not None
    for x_t, reset_t in zip(x, reset, strict=True):
        _, state = core.keeping_step(x_t, state, reset_t, kept)
    return kept


def gradients(core: Core, dtype: torch.dtype, kept: Kept | None, *inputs: Any) -> dict[str, Tensor]:
    """Return outputs and the gradients of everything, for a loss that weighs all outputs alike."""
    x, state, reset = inputs
    x, *state = (each.to(dtype).requires_grad_() for each in (x.clone(), *(part.clone() for part in state)))
    unroll = core.measured_unroll if kept is None else lambda *a: core.known_unroll(*a, kept)
    y, after, stats = unroll(x, tuple(state), reset)
    loss = sum((part * torch.linspace(-1, 2, part.numel()).view(part.shape)).sum() for part in (y, *after))
    names = ["x", *(f"state {i}" for i in range(len(state))), *dict(core.named_parameters())]
    grads = torch.autograd.grad(loss, [x, *state, *core.parameters()])
    return {"y": y.detach(), **stats, **dict(zip(names, grads, strict=True))}


@pytest.mark.parametrize("rows", [1, 5, 16, 19])
@pytest.mark.parametrize("name", CORES)
def test_gradients_of_what_was_kept(name: str, rows: int, seed: int) -> None:
    core, *inputs = made(name, rows, integer(1, 9))
    kept = keep(core, *inputs)
    assert kept.knows(inputs[0], kept._weights)
    got = gradients(core, torch.float32, kept, *inputs)
    want = gradients(copy.deepcopy(core).double(), torch.float64, None, *inputs)
    for which, expected in want.items():
        assert_near(which, got[which], expected, 1e-4)


@pytest.mark.parametrize("name", CORES)
def test_values_are_taken_from_what_was_kept(name: str, seed: int) -> None:
    core, *inputs = made(name, 3, 4)
    kept = keep(core, *inputs)
    kept.tensors[0].add_(100)  # the outputs are here, among others
    assert core.known_unroll(*inputs, kept)[0].min() > 50


@pytest.mark.parametrize("name", CORES)
def test_what_is_not_known_is_computed_anew(name: str, seed: int) -> None:
    core, x, state, reset = made(name, 3, 4)
    want = core.measured_unroll(x, state, reset)[0]
    short = keep(core, x[:3], state, reset[:3])
    torch.testing.assert_close(core.known_unroll(x, state, reset, short)[0], want)
    unfinished = core.new_kept(4, 3)
    assert unfinished is not None
    torch.testing.assert_close(core.known_unroll(x, state, reset, unfinished)[0], want)
    kept, other = keep(core, x, state, reset), copy.deepcopy(core)
    for changed in (other, core):
        with torch.no_grad():
            next(changed.parameters()).mul_(2)
        want = changed.measured_unroll(x, state, reset)[0]
        torch.testing.assert_close(changed.known_unroll(x, state, reset, kept)[0], want)


@torch.no_grad()
@pytest.mark.parametrize("name", CORES)
def test_steps_without_room_are_steps_all_the_same(name: str, seed: int) -> None:
    core, x, state, reset = made(name, 3, 1)
    for rows, room in ((3, 1), (2, 0)):
        kept = core.new_kept(1, 3)
        assert kept is not None
        inputs = x[0, :rows], tuple(part[:rows] for part in state), reset[0, :rows]
        for _ in range(2):
            y, _ = core.keeping_step(*inputs, kept)
            torch.testing.assert_close(y, core.step(*inputs)[0])
        assert kept.t == room
