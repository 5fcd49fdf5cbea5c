"""What every core promises: one arithmetic in step and unroll, gradients through time, resets."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from fastweight_helpers import RESET_PATTERNS, assert_near, integer, make_reset
from torch import Tensor

from deltabeast.cores import Core, FastWeightCore, State, StatePart, core_names, make_core, unroll_truncated
from deltabeast.cores.attention import WindowMemory
from deltabeast.cores.delta_net import DeltaMemory

SMALL = {"hidden_size": 16, "num_heads": 2, "ff_size": 24}
OPTIONS: dict[str, dict[str, Any]] = {
    "feedforward": {},
    "gated_feedforward": {"hidden_size": 12},
    "lstm": {"hidden_size": 12},
    "gru": {"hidden_size": 12},
    # rounding turns the last digit of a score into a whole number's difference now and then
    "deltaformer": {**SMALL, "first": "softmax"},
    "transformer": {**SMALL, "window": 6},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "delta_rnn A": ("delta_rnn", {**SMALL, "variant": "A"}),
    "hybrid of equal layers": ("hybrid", {**SMALL, "layers": "delta_net,delta_net"}),
    "hybrid with ages": ("hybrid", {**SMALL, "layers": "kda,gtrxl"}),
    "hybrid fed": (
        "hybrid",
        {**SMALL, "layers": "kda:short_conv=3:head_norm=true,gtrxl:window=5", "residual": "gate", "clock": 2},
    ),
    "delta_net fed": ("delta_net", {**SMALL, "short_conv": 3, "head_norm": True, "output_gate": "silu"}),
    "rdn fed": ("rdn", {**SMALL, "short_conv": 2, "head_norm": True, "output_gate": "sigmoid", "clock": 2}),
    "feedforward convolved": ("feedforward", {"short_conv": 6}),
}
"""cores with options that take another way through the code"""
STATELESS = ("feedforward", "gated_feedforward")
SLOW = ("lstm", "gru", "feedforward convolved")
RECURRENT = (*(name for name in core_names() if name not in STATELESS), "feedforward convolved")
FAST_WEIGHTS = tuple(name for name in RECURRENT if name not in SLOW)
STRENGTHS: dict[str, set[str]] = {
    "linear_transformer": set(),
    "gated_linear_attention": {"decay"},
    "gated_delta_net": {"write_strength", "decay"},
    "momentum_delta_net": {"write_strength", "momentum"},
    "kda": {"write_strength", "decay"},
    "gated_delta_net_2": {"write_strength", "erase_strength", "decay"},
    "rwkv7": {"write_strength", "decay"},
    "delta_rnn": {"write_strength", "recurrent_write_strength"},
    "softmax_attention": set(),
    "gtrxl": set(),
    "transformer": set(),
    "hybrid": {"write_strength"},
    "delta_lstm": {"write_strength", "recurrent_write_strength"},
}
"""what a core logs of its writes, if not the write strength alone"""


def small(name: str, dtype: torch.dtype = torch.float64) -> Core:
    name, options = FORMS.get(name, (name, OPTIONS.get(name, SMALL)))
    return make_core(name, 7, **options).to(dtype)


def random_state(core: Core, batch: int) -> tuple[Tensor, ...]:
    """Normal numbers; from 0 to 1 for what is left of weights, `[B, L, H, N]`."""
    parts = core.initial_state(batch)
    if isinstance(core, FastWeightCore) and isinstance(core.memories()[-1], WindowMemory):
        return tuple(
            (torch.rand_like if part.dim() == 4 else torch.randn_like)(part).requires_grad_()
            for part in parts
        )
    return tuple(torch.randn_like(part).requires_grad_() for part in parts)


def random_input(core: Core, steps: int, batch: int) -> Tensor:
    dtype = next((p.dtype for p in core.parameters()), torch.float64)
    return torch.randn(steps, batch, core.input_size, dtype=dtype, requires_grad=True)


def by_steps(
    core: Core, x: Tensor, state: tuple[Tensor, ...], reset: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    outputs = []
    for x_t, reset_t in zip(x, reset, strict=True):
        y, state = core.step(x_t, state, reset_t)
        outputs.append(y)
    return torch.stack(outputs), state


def with_resets() -> list[Any]:
    """Every core, of which some of each kind have every pattern of resets in the short run."""
    each_kind = ("feedforward", "lstm", "rdn", "delta_lstm", "deltaformer", "rdn fed")
    return [
        pytest.param(name, pattern, marks=[] if short else [pytest.mark.long])
        for name, pattern in product([*core_names(), *FORMS], RESET_PATTERNS)
        for short in [name in each_kind or pattern in ("none", "random")]
    ]


@pytest.mark.parametrize(("name", "pattern"), with_resets())
def test_unroll_equals_steps(name: str, pattern: str, seed: int) -> None:
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        core, steps, batch = small(name, dtype), integer(1, 20), integer(1, 4)
        x, state, reset = (
            random_input(core, steps, batch),
            random_state(core, batch),
            make_reset(pattern, steps, batch),
        )
        results = []
        for unroll in (core.unroll, lambda *a, core=core: by_steps(core, *a)):
            y, end = unroll(x, state, reset)
            assert y.shape == (steps, batch, core.output_size)
            assert [part.shape for part in end] == [part.shape for part in state]
            loss = (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() + sum(
                part.square().sum() for part in end
            )
            leaves = [x, *state, *core.parameters()]
            results.append((y, *end, *torch.autograd.grad(loss, leaves)))
        with torch.no_grad():
            y, end = by_steps(core, x, state, reset)
        for i, (got, want) in enumerate(zip(*results, strict=True)):
            # The gradient of a time, one number, is a sum in which terms a thousand times as large cancel.
            cancels = 1000 if dtype is torch.float32 and got.shape[1:] == (1,) else 1
            assert_near(f"{dtype} {i}", got, want, cancels * tolerance)
        for i, (got, want) in enumerate(zip((y, *end), results[0], strict=False)):
            assert_near(f"{dtype} {i} of an actor", got, want, tolerance)


@pytest.mark.parametrize("name", RECURRENT)
def test_gradients_reach_the_initial_state_unless_reset(name: str, seed: int) -> None:
    core = small(name)
    x, state, reset = random_input(core, 6, 2), random_state(core, 2), make_reset("none", 6, 2)
    reset[3, 1] = True
    y, end = core.unroll(x, state, reset)
    grads = torch.autograd.grad(y[3:].sum() + sum(part.sum() for part in end), (x, *state))
    for grad in grads[1:]:
        assert grad[0].any()
        assert not grad[1].any()
    assert grads[0][:3, 0].any()
    assert not grads[0][:3, 1].any()
    assert grads[0][3:].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_broken_state_does_not_survive_a_reset(name: str, value: float, seed: int) -> None:
    core = small(name)
    x, reset = random_input(core, 5, 3), make_reset("none", 5, 3)
    state = tuple(part.detach() for part in random_state(core, 3))
    for part in state:
        part[1] = value
    reset[0, 1] = True
    state = tuple(part.requires_grad_() for part in state)
    y, end = core.unroll(x, state, reset)
    loss = y.sum() + sum(part.sum() for part in end)
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, (x, *state, *core.parameters())))
    with torch.inference_mode():
        y, end = core.step(x[0], state, reset[0])
    assert y.isfinite().all()
    assert all(part.isfinite().all() for part in end)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_reset_is_a_fresh_start(name: str, seed: int) -> None:
    core = small(name)
    x, state = random_input(core, 8, 2), random_state(core, 2)
    reset = make_reset("none", 8, 2)
    reset[5] = True
    y, end = core.unroll(x, state, reset)
    fresh, fresh_end = core.unroll(x[5:], core.initial_state(2), reset[5:])
    assert_near("y", y[5:], fresh, 1e-12)
    for a, b in zip(end, fresh_end, strict=True):
        assert_near("state", a, b, 1e-12)
    assert not torch.allclose(core.unroll(x[5:], state, reset[:3])[0], fresh)  # the state does matter


@pytest.mark.parametrize("name", RECURRENT)
def test_per_step_cuts_the_gradient_of_fast_weights_and_unroll_does_not(name: str, seed: int) -> None:
    """The published LSTM had the whole unroll: only fast-weight memories were cut, all of their states."""
    core = small(name)
    x, state, reset = random_input(core, 5, 2), core.initial_state(2), make_reset("none", 5, 2)
    (full,) = torch.autograd.grad(core.unroll(x, state, reset)[0][-1].sum(), x)
    state = tuple(part.requires_grad_() for part in core.initial_state(2))
    y, end, _ = unroll_truncated(core, x, state, reset)
    (cut,) = torch.autograd.grad(y[-1].sum(), x, retain_graph=True)
    assert_near("y", y, core.unroll(x, state, reset)[0], 1e-11)
    assert all(full[t].any() for t in range(5))
    if name in SLOW:
        assert torch.equal(cut, full)
        return
    assert not cut[:-1].any() and cut[-1].any()
    for part in (part for part in end if part.requires_grad):  # W, R and y alike
        into, *before = torch.autograd.grad(
            part.sum(), (x, *state), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        assert not into[:-1].any() and into[-1].any() and not any(old.any() for old in before)


def test_per_step_leaves_a_core_of_ones_own_whole_unless_it_declares_fast_weights(seed: int) -> None:
    class Own(Core):
        def initial_state(self, batch_size: int, device: Any = None) -> State:
            return (torch.zeros(batch_size, self.output_size),)

        def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
            (h,) = state
            outputs = []
            for x_t in x:
                h = x_t + 0.5 * h
                outputs.append(h)
            return torch.stack(outputs), (h,)

    class OwnFastWeights(Own):
        has_fast_weights = True

    for kind, first in ((Own, 0.5**3), (OwnFastWeights, 0.0)):
        x = torch.randn(4, 2, 3, requires_grad=True)
        core = kind(3, 3)
        y, *_ = unroll_truncated(core, x, core.initial_state(2), make_reset("none", 4, 2))
        (grad,) = torch.autograd.grad(y[-1].sum(), x)
        assert (grad[0] == first).all() and (grad[-1] == 1).all()


class RecentMemory(DeltaMemory):
    """Delta Net's memory that also reads the mean of its last values.

    Args:
        window: how many values it holds.
    """

    def __init__(self, hidden_size: int, num_heads: int, window: int = 2) -> None:
        super().__init__(hidden_size, num_heads)
        self.window = window

    def state_parts(self) -> tuple[StatePart, ...]:
        return (*super().state_parts(), StatePart("cache", (self.window, self.num_heads, self.head_size)))

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, (W,) = super().unroll(projections, state[:1], reset)
        outputs, cache = [], state[1]
        for v_t, reset_t in zip(projections[2], reset, strict=True):
            kept = cache.masked_fill(reset_t.view(-1, 1, 1, 1), 0)
            cache = torch.cat((kept[:, 1:], v_t.unsqueeze(1)), 1)
            outputs.append(cache.mean(1))
        return y + torch.stack(outputs), (W, cache)


class Recent(FastWeightCore):
    """A core with a memory that has an option, and state that is no fast weights."""

    memory = RecentMemory


def test_a_memory_has_options_and_state_of_other_kinds(seed: int) -> None:
    """Norms are those of fast weights alone, whatever shape other state has; all of it is cut."""
    core = Recent(7, **SMALL, window=3).double()
    assert [memory.window for memory in core.memories()] == [3, 3]
    assert [part.shape[2:] for part in core.initial_state(4)] == [(2, 8, 8), (3, 2, 8)]
    x, reset = random_input(core, 5, 2), make_reset("random", 5, 2)
    state = random_state(core, 2)
    y, end, stats = core.unroll_with_stats(x, state, reset)
    torch.testing.assert_close(stats["fast_weight_norm"], end[0].norm(dim=(-2, -1)).mean().detach())
    assert_near("y", by_steps(core, x, state, reset)[0], y, 1e-11)
    y, *_ = unroll_truncated(core, x, state, make_reset("none", 5, 2))
    (cut,) = torch.autograd.grad(y[-1].sum(), x)
    assert not cut[:-1].any() and cut[-1].any()


@pytest.mark.parametrize("name", core_names())
def test_seeds_and_copies(name: str) -> None:
    def numbers(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return [p.detach() for p in small(name).parameters()]

    assert all(torch.equal(a, b) for a, b in zip(numbers(1), numbers(1), strict=True))
    if numbers(1):
        assert not all(torch.equal(a, b) for a, b in zip(numbers(1), numbers(2), strict=True))
    core = small(name)
    core.unroll(random_input(core, 2, 2), core.initial_state(2), make_reset("none", 2, 2))
    for twin in (copy.deepcopy(core), pickle.loads(pickle.dumps(core))):
        assert [n for n, _ in twin.named_parameters()] == [n for n, _ in core.named_parameters()]


@pytest.mark.parametrize("name", core_names())
def test_rows_are_independent(name: str, seed: int) -> None:
    """A batch of three gives each row what it would get alone: dynamic batching of actors changes nothing."""
    core = small(name)
    x, state, reset = random_input(core, 4, 3), random_state(core, 3), make_reset("random", 4, 3)
    y, _ = core.unroll(x, state, reset)
    for b in range(3):
        alone, _ = core.unroll(x[:, b : b + 1], tuple(part[b : b + 1] for part in state), reset[:, b : b + 1])
        assert_near(f"row {b}", y[:, b : b + 1], alone, 1e-11)


@pytest.mark.parametrize("name", core_names())
def test_no_steps_and_no_rows_are_refused(name: str) -> None:
    core = small(name)
    for steps, batch in ((0, 2), (2, 0)):
        inputs = (
            torch.zeros(steps, batch, 7).double(),
            core.initial_state(batch),
            make_reset("none", steps, batch),
        )
        for unroll in (core.unroll, partial(unroll_truncated, core)):
            with pytest.raises(
                ValueError, match=rf"^[^\n]* is \[{steps}, {batch}, [^\n]*; [^\n]* at least (1|one)"
            ):
                unroll(*inputs)
    with pytest.raises(ValueError, match="at least"):
        core.step(torch.zeros(0, 7).double(), core.initial_state(0), make_reset("none", 1, 0)[0])


@pytest.mark.parametrize("name", RECURRENT)
def test_states_and_resets_of_other_batches_are_refused(name: str) -> None:
    core = small(name)
    x, state, reset = torch.zeros(4, 3, 7).double(), core.initial_state(3), make_reset("none", 4, 3)
    for other in (core.initial_state(1), core.initial_state(2), core.initial_state(4)):
        for i in range(len(state)):
            with pytest.raises(ValueError, match=r"^\w+: [^\n]* give [^\n]*\[3, "):
                core.unroll(x, (*state[:i], other[i], *state[i + 1 :]), reset)
    for wrong in (reset[:1], reset[:, :1], reset[:, 0], reset.double()):
        with pytest.raises(ValueError, match=r"^\w+: reset is [^\n]*; [^\n]*give [^\n]*$"):
            core.unroll(x, state, wrong)


@pytest.mark.parametrize("name", RECURRENT)
def test_memory_stays_float32_under_autocast(name: str, seed: int) -> None:
    core = small(name, torch.float32)
    x, state, reset = random_input(core, 20, 3), random_state(core, 3), make_reset("random", 20, 3)
    want, _ = core.unroll(x, state, reset)
    with torch.autocast("cpu", torch.bfloat16):
        y, end = core.unroll(x, state, reset)
        _, stepped = core.step(x[0], state, reset[0])
    assert {part.dtype for part in (*end, *stepped)} == {torch.float32}
    assert_near("y", y, want, 0.05)
    assert all(
        grad.isfinite().all() for grad in torch.autograd.grad(y.float().sum(), (x, *core.parameters()))
    )


@pytest.mark.parametrize("name", RECURRENT)
def test_learner_takes_over_from_inference_mode(name: str, seed: int) -> None:
    core, reset = small(name), make_reset("random", 3, 2)
    with torch.inference_mode():
        _, state = core.step(random_input(core, 1, 2)[0], core.initial_state(2), reset[0])
    y, _ = core.unroll(random_input(core, 3, 2), state, reset)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.sum(), list(core.parameters())))


@pytest.mark.parametrize("name", FAST_WEIGHTS)
def test_stats(name: str, seed: int) -> None:
    core = small(name)
    x, state, reset = random_input(core, 6, 2), random_state(core, 2), make_reset("random", 6, 2)
    _, end, stats = core.unroll_with_stats(x, state, reset)
    layers = zip(core.memories(), core.split(end[:-1] if core.clock else end), strict=True)
    parts = [part for memory, share in layers for part in memory.fast_weights(share)]
    if parts:
        norms = torch.cat([part.norm(dim=(-2, -1)).flatten() for part in parts])
        torch.testing.assert_close(stats["fast_weight_norm"], norms.mean().detach())
    logged = STRENGTHS.get(name, {"write_strength"})
    assert set(stats) == logged | ({"fast_weight_norm"} if parts else set())
    assert all(value.shape == () and not value.requires_grad for value in stats.values())
    strengths = []
    for t in range(6):  # the mean over an unroll is the mean of its steps
        _, state, step = core.unroll_with_stats(x[t : t + 1], state, reset[t : t + 1])
        strengths.append({n: v for n, v in step.items() if n != "fast_weight_norm"})
    for key in strengths[0]:
        torch.testing.assert_close(stats[key], torch.stack([s[key] for s in strengths]).mean())
        assert 0 < stats[key] < (2 if name == "delta_product" else 1)


@pytest.mark.parametrize("name", [*core_names(), *FORMS])
def test_weights_of_half_the_bits(name: str, seed: int) -> None:
    """Outputs are what the input is, the memory stays in float32."""
    core = small(name, torch.float32)
    whole = random_input(core, 5, 3).detach()
    state, reset = tuple(part.detach() for part in random_state(core, 3)), make_reset("random", 5, 3)
    want = core.unroll(whole, state, reset)[0]
    core.bfloat16()
    x = whole.bfloat16().requires_grad_()
    y, end = core.unroll(x, state, reset)
    assert y.dtype == torch.bfloat16 and all(part.dtype == torch.float32 for part in end)
    assert_near(name, y.float(), want, 0.1)
    y.float().square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
