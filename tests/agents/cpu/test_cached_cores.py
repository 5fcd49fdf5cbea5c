"""A forward pass cached step by step: backward from it is autograd's in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fastweight_helpers import assert_near, integer, make_reset
from torch import Tensor

from deltabeast.agents.cpu.cores import CoreFunctions, functions_of
from deltabeast.cores import Core, State, Stats, make_core
from deltabeast.cores.attention import WindowMemory
from deltabeast.kernels.native import compiling
from deltabeast.kernels.native.forward_cache import ForwardCache

FED = {"short_conv": 3, "head_norm": True, "output_gate": "silu"}
CORES = (
    *("linear_transformer", "delta_net", "delta_rnn", "rdn", "gated_delta_net", "lstm"),
    *("kda", "gated_delta_net_2", "delta_product", "rwkv7", "kda, fed", "rdn, fed"),
    *("transformer", "softmax_attention, fed", "hybrid"),
)
pytestmark = pytest.mark.skipif(
    compiling.unsupported_reason("dense.c", "LANES=8") is not None, reason="no C compiler builds dense.c"
)


def made(name: str, rows: int, steps: int) -> tuple[Core, Tensor, State, Tensor]:
    """Make a core whose every weight matters, and inputs of an unroll."""
    options: dict[str, Any] = {} if name == "lstm" else {"num_heads": 3, "ff_size": 9}
    name, _, fed = name.partition(", ")
    options |= FED if fed else {}
    if name == "hybrid":
        options |= {"layers": "kda:short_conv=3,gtrxl:window=9:head_norm=true,rdn", "clock": 2}
    core = make_core(name, integer(1, 40), hidden_size=24, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    state = tuple(torch.randn_like(part) for part in core.initial_state(rows))
    if any(isinstance(module, WindowMemory) for module in core.modules()):
        # What is left of attention's weights is from 0 to 1.
        state = tuple(torch.rand_like(part) if part.dim() == 4 else part for part in state)
    if getattr(core, "clock", 0):
        state = (*state[:-1], torch.randint(3000, (rows, 1)).float())
    return core, torch.randn(steps, rows, core.input_size), state, make_reset("random", steps, rows)


def fast(core: Core) -> CoreFunctions:
    found = functions_of(core)
    assert found is not None
    return found


def new_cache(core: Core, steps: int, rows: int) -> ForwardCache:
    made = fast(core).new_cache
    cache = made and made(core, steps, rows)
    assert cache is not None
    return cache


@torch.no_grad()
def cached(core: Core, x: Tensor, state: State, reset: Tensor) -> ForwardCache:
    cache = new_cache(core, *x.shape[:2])
    for x_t, reset_t in zip(x, reset, strict=True):
        _, state = fast(core).step(core, x_t, state, reset_t, cache)
    return cache


def from_cache(
    core: Core, x: Tensor, state: State, reset: Tensor, cache: ForwardCache
) -> tuple[Tensor, State, Stats] | None:
    unroll = fast(core).unroll
    assert unroll is not None
    return unroll(core, x, state, reset, cache)


def gradients(core: Core, dtype: torch.dtype, cache: ForwardCache | None, *inputs: Any) -> dict[str, Tensor]:
    """Return outputs and the gradients of everything, for a loss that weighs all outputs alike."""
    x, state, reset = inputs
    x, *state = (each.to(dtype).requires_grad_() for each in (x.clone(), *(part.clone() for part in state)))
    if cache is None:
        y, after, stats = core.unroll_with_stats(x, tuple(state), reset)
    else:
        y, after, stats = from_cache(core, x, tuple(state), reset, cache)
    loss = sum((part * torch.linspace(-1, 2, part.numel()).view(part.shape)).sum() for part in (y, *after))
    names = ["x", *(f"state {i}" for i in range(len(state))), *dict(core.named_parameters())]
    grads = torch.autograd.grad(loss, [x, *state, *core.parameters()])
    return {"y": y.detach(), **stats, **dict(zip(names, grads, strict=True))}


@pytest.mark.parametrize("rows", [1, 5, 16, 19])
@pytest.mark.parametrize("name", CORES)
def test_gradients_of_a_cached_forward_pass(name: str, rows: int, seed: int) -> None:
    core, *inputs = made(name, rows, integer(1, 9))
    cache = cached(core, *inputs)
    assert cache.matches(inputs[0], cache._weights)
    got = gradients(core, torch.float32, cache, *inputs)
    want = gradients(copy.deepcopy(core).double(), torch.float64, None, *inputs)
    for which, expected in want.items():
        if expected.abs().max() < 1e-3:  # terms of order 1 that nearly cancel, as for attention's decays
            torch.testing.assert_close(got[which].double(), expected, rtol=1e-4, atol=1e-6)
        else:
            assert_near(which, got[which], expected, 1e-4)


@pytest.mark.parametrize("name", CORES)
def test_values_are_taken_from_the_cache(name: str, seed: int) -> None:
    core, *inputs = made(name, 3, 4)
    cache = cached(core, *inputs)
    cache.tensors[0].add_(100)  # the outputs are here, among others
    y, *_ = from_cache(core, *inputs, cache)
    assert y.min() > 50


@pytest.mark.parametrize("name", CORES)
def test_what_the_cache_has_not_is_left_to_the_plain_code(name: str, seed: int) -> None:
    core, x, state, reset = made(name, 3, 4)
    assert from_cache(core, x, state, reset, cached(core, x, state, reset)) is not None
    assert from_cache(core, x, state, reset, cached(core, x[:3], state, reset[:3])) is None
    assert from_cache(core, x, state, reset, new_cache(core, 4, 3)) is None
    cache, other = cached(core, x, state, reset), copy.deepcopy(core)
    for changed in (other, core):
        with torch.no_grad():
            next(changed.parameters()).mul_(2)
        assert from_cache(changed, x, state, reset, cache) is None


@torch.no_grad()
@pytest.mark.parametrize("name", CORES)
def test_steps_without_room_are_left_to_the_plain_code(name: str, seed: int) -> None:
    core, x, state, reset = made(name, 3, 1)
    for rows, room in ((3, 1), (2, 0)):
        cache = new_cache(core, 1, 3)
        inputs = x[0, :rows], tuple(part[:rows] for part in state), reset[0, :rows]
        for number in range(2):
            taken = fast(core).step(core, *inputs, cache)
            assert (taken is not None) == (number < room)
            if taken is not None:
                torch.testing.assert_close(taken[0], core.step(*inputs)[0])
        assert cache.t == room
