"""Writes taken back, scaled and blurred, against loops in which they were made so in the first place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import assert_near
from torch import Tensor

from deltabeast.cores import Core, FastWeightCore, State, StatePart, core_names, make_core
from deltabeast.cores.delta_net import DeltaMemory
from deltabeast.cores.fast_weights import MemoryTrace
from deltabeast.cores.observe import watch_traces
from deltabeast.cores.surgery import add_noise, replace_memory, scale_writes, writes_fast_weights

STEPS, ROWS, HEADS, SIZE = 12, 5, 2, 4
SMALL = {"hidden_size": HEADS * SIZE, "num_heads": HEADS, "ff_size": 8}
OPTIONS: dict[str, dict[str, Any]] = {
    "feedforward": {"short_conv": 3},
    **{name: {"hidden_size": 6} for name in ("gated_feedforward", "lstm", "gru")},
    "transformer": {**SMALL, "window": 5},
}
WITHOUT_FAST_WEIGHTS = {
    *("feedforward", "gated_feedforward", "lstm", "gru"),
    *("softmax_attention", "deltaformer", "gtrxl", "transformer"),
    "hybrid",  # of attention, too
}


def small(name: str, **options: Any) -> Core:
    return make_core(name, 3, **{**OPTIONS.get(name, SMALL), **options}).double()


def random_factor() -> Tensor:
    """Of each step and row; many are 0 or 1."""
    return torch.randn(STEPS, ROWS, dtype=torch.float64) * (torch.rand(STEPS, ROWS) < 0.4) + (
        torch.rand(STEPS, ROWS) < 0.4
    )


def random_reset() -> Tensor:
    reset = torch.rand(STEPS, ROWS) < 0.2
    reset[1:, 0] = False
    reset[0], reset[:, 1], reset[-1, 2] = False, True, True
    return reset


def by_steps(
    core: Core, x: Tensor, state: State, reset: Tensor, factor: Tensor
) -> tuple[dict[tuple[int, int], MemoryTrace], State]:
    """Play an unroll with writes scaled; traces by step and layer, and the state after it."""
    traces: dict[tuple[int, int], MemoryTrace] = {}
    with torch.no_grad():
        for t in range(STEPS):
            with watch_traces(core, lambda n, _, trace, t=t: traces.update({(t, n): trace})):  # type: ignore[misc]
                _, after = core.step(x[t], state, reset[t])
            state = scale_writes(core, state, after, reset[t], factor[t])
    return traces, state


def delta_net(memory: Any, W: Tensor, y: Tensor, parts: list[Tensor], head: int) -> tuple[Tensor, Tensor]:
    """One head's query and its W after the step; `parts` are what the slow net emits, `[H, size]`."""
    q, k, v, beta = (part[head] for part in parts)
    q, k = (torch.where(z > 0, z + 1, z.exp()) for z in (q, k))
    q, k = q / (q.sum() + 1e-5), k / (k.sum() + 1e-5)
    return q, W + beta.sigmoid() * torch.outer(v - W @ k, k)


def rdn(memory: Any, W: Tensor, y: Tensor, parts: list[Tensor], head: int) -> tuple[Tensor, Tensor]:
    q, k, v, beta = (part[head] for part in parts)
    g = y.tanh()
    q, k = (q + g @ memory.Rq[head]).softmax(0), (k + g @ memory.Rk[head]).softmax(0)
    v, beta = v + g @ memory.Rv[head], beta + g @ memory.rb[head]
    return q, W + beta.sigmoid() * torch.outer(v - W @ k, k)


def kda(memory: Any, W: Tensor, y: Tensor, parts: list[Tensor], head: int) -> tuple[Tensor, Tensor]:
    q, k, v, beta = (part[head] for part in parts[:4])
    rate = memory.to_decay.weight[head * SIZE : (head + 1) * SIZE] @ parts[4].flatten()
    decayed = W * torch.exp(-memory.decay.A[head].exp() * F.softplus(rate + memory.decay.b[head]))
    k = k / k.norm()
    return q / q.norm(), decayed + beta.sigmoid() * torch.outer(v - decayed @ k, k)


@pytest.mark.parametrize(("name", "rule"), [("delta_net", delta_net), ("rdn", rdn), ("kda", kda)])
def test_scaled_writes(name: str, rule: Callable[..., tuple[Tensor, Tensor]], seed: int) -> None:
    """Head by head: the step reads all that it writes, the next ones what is left of it."""
    core, x, reset, factor = (
        small(name),
        torch.randn(STEPS, ROWS, 3).double(),
        random_reset(),
        random_factor(),
    )
    start = tuple(torch.randn_like(part) for part in core.initial_state(ROWS))
    traces, end = by_steps(core, x, start, reset, factor)
    with torch.no_grad():
        for n, memory in enumerate(core.memories()):  # type: ignore[operator]
            for row in range(ROWS):
                for head in range(HEADS):
                    W = start[0][row, n, head]
                    y = start[1][row, n, head] if name == "rdn" else W[0]
                    for t in range(STEPS):
                        if reset[t, row]:
                            W, y = torch.zeros_like(W), torch.zeros_like(y)
                        parts = [part[0, row] for part in traces[t, n].projections]
                        q, after = rule(memory, W, y, parts, head)
                        y = after @ q
                        assert_near(f"step {t}", traces[t, n].y[0, row, head], y, 1e-11)
                        W = (1 - factor[t, row]) * W + factor[t, row] * after
                    assert_near("W", end[0][row, n, head], W, 1e-11)
                    if name == "rdn":
                        assert_near("last output", end[1][row, n, head], y, 1e-11)


@pytest.mark.parametrize(("name", "window"), [("softmax_attention", 4), ("transformer", 5)])
def test_a_window_without_some_steps(name: str, window: int, seed: int) -> None:
    """It has the steps that were written since the last reset; the time goes on."""
    core, x, reset = small(name, window=window), torch.randn(STEPS, ROWS, 3).double(), random_reset()
    written = torch.rand(STEPS, ROWS) < 0.6
    reset[0] = True
    traces, end = by_steps(core, x, core.initial_state(ROWS), reset, written.double())
    for n in range(2):
        for row in range(ROWS):
            for head in range(HEADS):
                seen: list[tuple[Tensor, Tensor]] = []
                for t in range(STEPS):
                    q, k, v = (part[0, row, head] for part in traces[t, n].projections)
                    seen = [] if reset[t, row] else seen
                    read = [*seen[-window:], (k, v)]
                    weights = torch.stack([key @ q * SIZE**-0.5 for key, _ in read]).softmax(0)
                    y = weights @ torch.stack([value for _, value in read])
                    assert_near(f"step {t}", traces[t, n].y[0, row, head], y, 1e-11)
                    if written[t, row]:
                        seen.append((k, v))
    if name == "transformer":
        since = [STEPS - int(reset[:, row].nonzero().max()) for row in range(ROWS)]
        assert end[-1].flatten().tolist() == since


def written_parts(core: Core) -> list[bool]:
    """Which tensors of the state writes go to, by what the states' docstrings say."""
    count = len(core.initial_state(1))
    if not isinstance(core, FastWeightCore):
        return [True] * count
    kinds = [part.kind for memory in core.memories() for part in memory.state_parts()]
    of_layer = [[part.kind for part in memory.state_parts()] for memory in core.memories()]
    if type(core).__name__ == "Hybrid":
        return [kind != "output" for kind in kinds]
    listed = [kind != "output" for kind in of_layer[0]]
    return listed + [False] * (count - len(listed))


BESIDES: dict[str, Any] = {"short_conv": 3, "clock": 2}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in core_names()),
        *((name, BESIDES) for name in ("rdn", "delta_lstm", "momentum_delta_net", "deltaformer", "gtrxl")),
        ("linear_transformer", {**BESIDES, "normalise": "attention"}),
    ],
)
def test_0_restores_the_memory_and_1_nothing(name: str, options: dict[str, Any], seed: int) -> None:
    """Bit for bit, whatever the numbers are; all that is no memory goes on."""
    core = small(name, **options)
    before, after = (tuple(torch.randn_like(part) for part in core.initial_state(4)) for _ in range(2))
    for part in (*before, *after):
        for value in (torch.nan, torch.inf, -0.0):
            part[torch.rand_like(part) < 0.1] = value
    reset, factor = torch.tensor([False, False, True, True]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    got = scale_writes(core, before, after, reset, factor)
    assert len(got) == len(after)
    for mine, old, new, changed in zip(got, before, after, written_parts(core), strict=True):
        want = new.clone()
        if changed:
            want[1], want[2] = old[1], 0
        assert mine.dtype == new.dtype and mine.shape == new.shape
        torch.testing.assert_close(mine, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(mine.signbit(), want.signbit())


def test_states_of_flags_and_counts_stand_still() -> None:
    core = small("lstm")  # any outside the backbone, whose cores may have such states
    before, after = (
        (torch.tensor(flags).unsqueeze(-1), torch.tensor(counts).unsqueeze(-1), torch.ones(4, 1).double())
        for flags, counts in (([True] * 4, [1, 2, 3, 4]), ([False] * 4, [5, 6, 7, 8]))
    )
    reset, factor = torch.tensor([False, False, True, False]), torch.tensor([1.0, 0.0, 0.0, 0.5])
    flags, counts, _ = scale_writes(core, before, after, reset, factor)
    assert flags.flatten().tolist() == [False, True, False, False]
    assert counts.flatten().tolist() == [5, 2, 0, 8]


def test_every_name_has_one_answer() -> None:
    found = {name for name in core_names() if not writes_fast_weights(small(name))}
    assert found == WITHOUT_FAST_WEIGHTS & {*core_names()}
    assert writes_fast_weights(small("hybrid", layers="delta_net,kda"))
    assert not writes_fast_weights(small("hybrid", layers="gtrxl,deltaformer"))


@pytest.mark.parametrize("name", ["rdn", "delta_rnn", "momentum_delta_net", "delta_mlp"])
def test_noise_of_a_size(name: str, seed: int) -> None:
    """Every matrix gets its own: amount · sqrt(mean of W_ij²) times what is drawn for it."""
    core = small(name, short_conv=2, clock=1)
    state = tuple(torch.randn_like(part) for part in core.initial_state(ROWS))
    amount = torch.tensor([0.0, 0.1, 2.0, 0.0, 1.0])
    drawn: list[Tensor] = []

    def normal(like: Tensor) -> Tensor:
        drawn.append(torch.randn_like(like))
        return drawn[-1]

    got = add_noise(core, state, amount, normal)
    kinds = [part.kind for part in core.memories()[0].state_parts()]  # type: ignore[operator]
    matrices = [i for i, kind in enumerate(kinds) if kind == "fast weights"]
    assert len(drawn) == 2 * len(matrices)
    for i, (mine, old) in enumerate(zip(got, state, strict=True)):
        if i not in matrices:
            assert torch.equal(mine, old)
            continue
        for layer in range(2):
            noise = drawn[layer * len(matrices) + matrices.index(i)]
            for row in range(ROWS):
                for head in range(old.shape[2]):
                    W = old[row, layer, head]
                    rms = (sum(float(w) ** 2 for w in W.flatten()) / W.numel()) ** 0.5
                    want = W + float(amount[row]) * rms * noise[row, head]
                    assert_near("W", mine[row, layer, head], want, 1e-6)  # the amount is a float32
        assert (
            torch.equal(mine[0], old[0]) and torch.equal(mine[3], old[3]) and not torch.equal(mine[1], old[1])
        )


class CachingMemory(DeltaMemory):
    """Fast weights beside a cache of its own."""

    def state_parts(self) -> tuple[StatePart, ...]:
        return (*super().state_parts(), StatePart("cache", (2, 3)))


class Caching(FastWeightCore):
    memory = CachingMemory


def test_a_cache_beside_fast_weights_goes_on(seed: int) -> None:
    core = Caching(3, **SMALL)
    before, after = (tuple(torch.randn_like(part) for part in core.initial_state(3)) for _ in range(2))
    W, cache = scale_writes(core, before, after, torch.zeros(3, dtype=torch.bool), torch.zeros(3))
    assert writes_fast_weights(core) and torch.equal(W, before[0]) and torch.equal(cache, after[1])


def test_a_hybrid_s_layers_are_each_of_their_own_kind(seed: int) -> None:
    core = small("hybrid", layers="rdn,softmax_attention")
    before, after = (tuple(torch.randn_like(part) for part in core.initial_state(3)) for _ in range(2))
    got = scale_writes(core, before, after, torch.zeros(3, dtype=torch.bool), torch.zeros(3))
    assert [torch.equal(*pair) for pair in zip(got, before, strict=True)] == [True, False, True, True, True]
    assert torch.equal(got[1], after[1])


@pytest.mark.parametrize("clock", [0, 3])
@pytest.mark.parametrize("core", ["rdn", "momentum_delta_net", "softmax_attention", "lstm"])
def test_a_memory_is_transplanted(core: str, clock: int, seed: int) -> None:
    """With each tensor that writes change, of an LSTM and of attention all; the time and outputs stay."""
    made = small(core, **({} if core == "lstm" else {"clock": clock}))
    own, donor = (
        tuple(torch.randn_like(part, dtype=torch.float64) for part in made.initial_state(2)) for _ in range(2)
    )
    taken = replace_memory(made, own, donor)
    kinds = ["cache"] * len(own)
    if isinstance(made, FastWeightCore):
        kinds = [part.kind for part in made.memories()[0].layer_state_parts()] + ["time"] * bool(clock)
    for kind, one, other, found in zip(kinds, own, donor, taken, strict=True):
        assert torch.equal(found, one if kind in ("output", "time") else other), kind
    with pytest.raises(ValueError, match="give two of the same core"):
        replace_memory(made, own, tuple(part[:1] for part in donor))
