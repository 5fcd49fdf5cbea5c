"""The memories of the generalised delta rule, and what feeds a memory, by loops over rows, heads, steps."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import assert_near, make_reset
from torch import Tensor

from deltabeast.cores import make_core
from deltabeast.cores.fast_weights import FastWeights
from deltabeast.cores.short_conv import MAX_STEPS

D, H = 12, 3
h = D // H


def memory_of(core: str, **options: object) -> FastWeights:
    made = make_core(core, 7, hidden_size=D, num_layers=1, num_heads=H, ff_size=8, **options)
    memory: FastWeights = made.memories()[0].double()
    with torch.no_grad():
        for parameter in memory.parameters():  # so that none is what it began as
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return memory


def run(memory: FastWeights, x: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs `[T, B, D]` and the fast weights after the last step, from zero state."""
    state = tuple(torch.zeros(x.shape[1], *part.shape, dtype=x.dtype) for part in memory.layer_state_parts())
    y, trace = memory(memory.slow_net(x), state, reset)
    return y, trace.after[0]


def unit(x: Tensor) -> Tensor:
    return x / x.norm()


def decays(memory: FastWeights, low: Tensor, n: int, size: int = h) -> Tensor:
    """The decay of head n's channels, from all heads' few numbers."""
    rate, bias = memory.decay.A[n].exp(), memory.decay.b[n]
    x = low.flatten() if size == 1 else memory.to_decay.weight[n * h : (n + 1) * h] @ low.flatten()
    x = x[n] if size == 1 else x
    return torch.exp(-rate * torch.log1p(torch.exp(x + bias)))


def kda(memory: FastWeights, S: Tensor, p: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """A step of head n: S `[keys, values]` as in the paper, p what the slow net emits for all heads."""
    q, k, v, beta = p[n, :h], unit(p[n, h : 2 * h]), p[n, 2 * h : 3 * h], p[n, 3 * h].sigmoid()
    S = torch.diag(decays(memory, p[:, 3 * h + 1 :], n)) @ S
    S = (torch.eye(h).double() - beta * torch.outer(k, k)) @ S + beta * torch.outer(k, v)
    return S, S.T @ unit(q)


def gated_delta_net_2(memory: FastWeights, S: Tensor, p: Tensor, n: int) -> tuple[Tensor, Tensor]:
    q, k, v, b, w = p[n, : 5 * h].split(h)
    k, b, w = unit(k), b.sigmoid(), w.sigmoid()
    S = torch.diag(decays(memory, p[:, 5 * h :], n)) @ S
    S = (torch.eye(h).double() - torch.outer(k, b * k)) @ S + torch.outer(k, w * v)
    return S, S.T @ unit(q)


def delta_product(memory: FastWeights, S: Tensor, p: Tensor, n: int) -> tuple[Tensor, Tensor]:
    q, k, v, beta = p[n, : h + 6 * h + 3].split((h, 3 * h, 3 * h, 3))
    S = decays(memory, p[:, -1:], n, 1) * S
    for i in range(3):
        key, strength = unit(k[i * h : (i + 1) * h]), 2 * beta[i].sigmoid()
        S = S + strength * torch.outer(key, v[i * h : (i + 1) * h] - S.T @ key)
    return S, S.T @ unit(q)


def rwkv7(memory: FastWeights, S: Tensor, p: Tensor, n: int) -> tuple[Tensor, Tensor]:
    rank, rows = (p.shape[1] - 3 * h) // 2, slice(n * h, (n + 1) * h)
    r, k, v = p[n, : 3 * h].split(h)
    low_w, low_a = p[:, 3 * h : 3 * h + rank].flatten(), p[:, 3 * h + rank :].flatten()
    w = torch.exp(
        -math.exp(-0.5) * (memory.to_decay.weight[rows] @ low_w.tanh() + memory.to_decay.bias[rows]).sigmoid()
    )
    a = (memory.to_rate.weight[rows] @ low_a + memory.to_rate.bias[rows]).sigmoid()
    removal = unit(k * memory.xi[n])
    k = k * (1 + (a - 1) * memory.alpha[n])
    by_values = S.T @ (torch.diag(w) - torch.outer(removal, a * removal)) + torch.outer(v, k)
    return by_values.T, by_values @ r + (r * memory.rho[n] * k).sum() * v


STEPS = {
    "kda": (kda, {}),
    "gated_delta_net_2": (gated_delta_net_2, {}),
    "delta_product": (delta_product, {"writes": 3, "gated": True}),
    "rwkv7": (rwkv7, {}),
}


@pytest.mark.parametrize("name", STEPS)
def test_each_memory_is_what_its_paper_says(name: str, seed: int) -> None:
    step, options = STEPS[name]
    memory, x, reset = memory_of(name, **options), torch.randn(6, 2, D).double(), make_reset("random", 6, 2)
    y, W = run(memory, x, reset)
    packed, want = (x @ memory.slow_net.weight.T).view(6, 2, H, -1), torch.empty_like(y).view(6, 2, H, h)
    for b in range(2):
        for n in range(H):
            S = torch.zeros(h, h).double()
            for t in range(6):
                S = torch.zeros_like(S) if reset[t, b] else S
                S, want[t, b, n] = step(memory, S, packed[t, b], n)
            assert_near("W", W[b, n], S.T, 1e-12)
    assert_near("y", y, want.view_as(y), 1e-12)


def test_two_writes_a_step_exchange_what_two_keys_hold() -> None:
    """W (I - 2 k kᵀ) twice is a rotation, here by 180 degrees of the plane: what is read changes its sign."""
    memory = memory_of("delta_product")
    half = torch.eye(h).double()
    keys = torch.cat((half[0], half[1])).expand(1, 1, H, -1)
    parts = half[0].expand(1, 1, H, -1), keys, torch.zeros_like(keys), torch.full((1, 1, H, 2), 60.0).double()
    W = torch.randn(1, H, h, h).double()
    y, _ = memory.unroll(parts, (W,), torch.zeros(1, 1, dtype=torch.bool))
    assert_near("y", y[0], -W[..., 0], 1e-12)


def test_decays_begin_as_published(seed: int) -> None:
    memory = make_core("kda", 7, hidden_size=256, num_heads=8).memories()[0]
    rates, steps = memory.decay.A.exp(), F.softplus(memory.decay.b)
    assert rates.min() >= 1 and rates.max() <= 16 and rates.std() > 1
    assert steps.min() >= 0.00099 and steps.max() <= 0.101
    assert abs(steps.log().mean().item() - math.log(0.01)) < 0.3  # log-uniform
    slow = make_core("rwkv7", 7, hidden_size=256).memories()[0].to_decay.bias
    assert slow[0] == -5.5 and slow[-1] == 0.5 and (slow.diff() > 0).all()


def test_the_decay_of_rwkv_7_has_a_least_value(seed: int) -> None:
    memory = memory_of("rwkv7")
    w, a = memory._rates(tuple(1e3 * torch.randn(5, 2, H, size).double() for size in memory.sizes))
    assert w.min() >= 0.545 and w.max() <= 1 and a.min() >= 0 and a.max() <= 1


GATES = {"silu": F.silu, "sigmoid": torch.sigmoid}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("core", ["delta_net", "kda", "rdn", "delta_rnn", "deltaformer"])
def test_what_feeds_a_memory(core: str, gate: str, seed: int) -> None:
    """Convolved projections go in; what comes out is divided by its root mean square, then gated."""
    options = {"window": 4} if core == "deltaformer" else {}
    memory = memory_of(core, short_conv=3, head_norm=True, output_gate=gate, **options)
    x, reset = torch.randn(5, 1, D).double(), torch.zeros(5, 1, dtype=torch.bool)
    y, _ = run(memory, x, reset)
    packed = (x @ memory.slow_net.weight.T).view(5, 1, H, -1)
    *parts, opening = packed.split((*memory.sizes, h), -1)
    count = {"delta_rnn": 5, "deltaformer": 4}.get(core, 3)
    vectors = torch.cat(parts[:count], -1).flatten(-2)
    kernel = memory.short_conv.weight
    mixed = [F.silu(sum(kernel[age] * vectors[t - age] for age in range(3) if age <= t)) for t in range(5)]
    mixed = torch.stack(mixed).view(5, 1, H, -1).split(memory.sizes[:count], -1)
    state = tuple(torch.zeros(1, *part.shape).double() for part in memory.state_parts())
    raw, _ = memory.unroll((*mixed, *parts[count:]), state, reset)
    scale = (raw.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    want = raw / scale * memory.head_norm.weight * GATES[gate](opening)
    assert_near("y", y, want.flatten(-2), 1e-12)


def test_options_of_every_memory() -> None:
    core = make_core("rdn", 7, hidden_size=D, num_heads=H, short_conv=4, head_norm=True, output_gate="silu")
    plain = make_core("rdn", 7, hidden_size=D, num_heads=H)
    assert [tuple(part.shape) for part in core.initial_state(2)] == [
        *(tuple(part.shape) for part in plain.initial_state(2)),
        (2, 2, 3, 3 * D),
    ]
    more = sum(p.numel() for p in core.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == 2 * (4 * 3 * D + h + D * D)
    for short_conv in (-1, MAX_STEPS + 1):
        said = f"short_conv is {short_conv}; give 1 to {MAX_STEPS} steps, or 0 for none"
        with pytest.raises(ValueError, match=said):
            make_core("rdn", 7, short_conv=short_conv)
    make_core("rdn", 7, short_conv=MAX_STEPS)
    with pytest.raises(ValueError, match="writes is 0; give at least 1"):
        make_core("delta_product", 7, writes=0)
