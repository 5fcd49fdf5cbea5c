"""Where a reading comes from, against matrices of every step written out and multiplied, in float64 loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import RESET_PATTERNS, make_reset
from torch import Tensor

from deltabeast.cores import FastWeightCore, core_names, make_core
from deltabeast.cores.base import State
from deltabeast.cores.delta_net import DeltaMemory
from deltabeast.cores.fast_weights import FastWeights, MemoryTrace
from deltabeast.cores.kda import KDAMemory
from deltabeast.cores.linear_form import AttentionForm, DeltaForm, LinearForm, Writes, delta_form, join
from deltabeast.cores.observe import watch_traces
from deltabeast.cores.provenance import (
    Shares,
    core_shares,
    fraction_matrix,
    fractions,
    last_state,
    linear_forms,
    readings,
    shares,
    without_write,
)

D, H, B = 12, 3, 2
h = D // H
SIZES = {"hidden_size": D, "num_heads": H, "ff_size": 8}
OUTSIDE = ("feedforward", "gated_feedforward", "lstm", "gru")


class Reads(NamedTuple):
    """A step of one matrix of one head: `W = diag(left) W`, for each write `W = W A + u kᵀ`, then `W q`."""

    q: Tensor
    writes: list[tuple[Tensor, Tensor, Tensor]]
    """A, u, k"""
    left: Tensor | None = None


Parts = list[list[Tensor]]
"""for each step, the numbers that the slow net emits for one head"""
Definition = Callable[[Any, Parts, list[Tensor], list[bool], int], Iterator[list[Reads]]]
"""memory, parts, state of the head before, resets, its number -> for each step its matrices, in order"""


def features(memory: Any, x: Tensor) -> Tensor:
    """The feature maps of the cases below."""
    own = memory.features
    if own.feature_map in ("unit", "root2"):
        return x / x.norm() * (2**0.5 if own.feature_map == "root2" else 1)
    if own.feature_map == "dpfp":
        z = torch.cat((x.relu(), (-x).relu()))
        x = torch.cat([torch.stack([z[i] * z[i - j] for i in range(len(z))]) for j in (1, 2)])
    else:
        x = torch.where(x > 0, x + 1, x.exp())
    return x / (x.sum() + 1e-5) if own.normalise in ("sum", "both") else x


def eye(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype)


def correct(k: Tensor, e: Tensor) -> Tensor:
    """W A is W without what it holds along e, under k."""
    return eye(k) - torch.outer(e, k)


def additive(
    memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int
) -> Iterator[list[Reads]]:
    z = state[-1][0]
    for t, (q, k, v) in enumerate(parts):
        q, k = features(memory, q), features(memory, k)
        z = (torch.zeros_like(z) if reset[t] else z) + k
        yield [Reads(q / (z @ q + 1e-5) if memory.features.attends else q, [(eye(k), v, k)])]


def gated(memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int) -> Iterator[list[Reads]]:
    for q, k, v, x in parts:
        q, k, rate = features(memory, q), features(memory, k), x.sigmoid() ** (1 / 16)
        if memory.gate == "value":
            yield [Reads(q, [(eye(k), v, k)], rate)]
        else:
            yield [Reads(q, [(torch.diag(rate.expand_as(k)), v, k)])]


def peng(memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int) -> Iterator[list[Reads]]:
    for q, k, v, x in parts:
        q, k, beta = features(memory, q), features(memory, k), x.sigmoid()
        yield [Reads(q, [((1 - beta) * eye(k), beta * v, k)])]


def delta(memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int) -> Iterator[list[Reads]]:
    z = state[-1][0]
    for t, (q, k, v, x, *decay) in enumerate(parts):
        q, k = features(memory, q), features(memory, k)
        beta, rate = x.sigmoid() * memory.beta_max, (decay[0].sigmoid() ** (1 / 16) if decay else 1)
        if memory.features.attends:
            z = torch.zeros_like(z) if reset[t] else z
            norm = z @ k if z.any() else torch.ones(())
            k, beta, z = k / norm, beta * norm, z + k
            q = q / (z @ q + 1e-5)
        yield [Reads(q, [(rate * correct(k, beta * k), beta * v, k)])]


def momentum(
    memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int
) -> Iterator[list[Reads]]:
    """[W C] as one matrix, of which q reads the first half."""
    for q, k, v, x, eta in parts:
        q, k, beta, eta = features(memory, q), features(memory, k), x.sigmoid(), eta.sigmoid()
        zero, one = torch.zeros_like(eye(k)), eye(k)
        A = torch.cat((torch.cat((correct(k, beta * k), zero), 1), torch.cat((eta * one, eta * one), 1)))
        yield [Reads(torch.cat((q, 0 * q)), [(A, beta * v, torch.cat((k, k)))])]


def rates(memory: Any, low: Tensor, n: int) -> Tensor:
    x = memory.to_decay.weight[n * h : (n + 1) * h] @ low
    return torch.exp(-memory.decay.A[n].exp() * torch.log1p(torch.exp(x + memory.decay.b[n])))


def kda(memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int) -> Iterator[list[Reads]]:
    for q, k, v, *gates, low in parts:
        k, (b, *w) = k / k.norm(), [gate.sigmoid() for gate in gates]
        A = torch.diag(rates(memory, low, n)) @ correct(k, b * k)
        yield [Reads(q / q.norm(), [(A, (w[0] if w else b) * v, k)])]


def product(
    memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int
) -> Iterator[list[Reads]]:
    for q, keys, values, betas, *low in parts:
        writes = []
        for i, (k, v) in enumerate(zip(keys.split(h), values.split(h), strict=True)):
            k, beta, rate = k / k.norm(), 2 * betas[i].sigmoid(), torch.ones(())
            if low and i == 0:
                rate = torch.exp(-memory.decay.A[n].exp() * F.softplus(low[0][n] + memory.decay.b[n]))
            writes.append((rate * correct(k, beta * k), beta * v, k))
        yield [Reads(q / q.norm(), writes)]


def rwkv7(memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int) -> Iterator[list[Reads]]:
    rows = slice(n * h, (n + 1) * h)
    for r, k, v, low_w, low_a in parts:
        x = memory.to_decay.weight[rows] @ low_w.tanh() + memory.to_decay.bias[rows]
        w = torch.exp(-math.exp(-0.5) * x.sigmoid())
        a = (memory.to_rate.weight[rows] @ low_a + memory.to_rate.bias[rows]).sigmoid()
        removal = k * memory.xi[n] / (k * memory.xi[n]).norm()
        k = k * (1 + (a - 1) * memory.alpha[n])
        bonus = (r * memory.rho[n] * k).sum()
        A = torch.diag(w) - torch.outer(removal, a * removal)
        one = torch.ones(1, dtype=k.dtype)
        yield [Reads(r, [(A, 0 * v, k), (eye(k), v, k)]), Reads(bonus * one, [(0 * eye(one), v, one)])]


def rdn(memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int) -> Iterator[list[Reads]]:
    W, y = state
    for t, (q, k, v, beta) in enumerate(parts):
        W, y = (0 * W, 0 * y) if reset[t] else (W, y)
        g = y.tanh()
        q, k = (q + g @ memory.Rq[n]).softmax(0), (k + g @ memory.Rk[n]).softmax(0)
        v, beta = v + g @ memory.Rv[n], (beta + g @ memory.rb[n]).sigmoid()
        A = correct(k, beta * k)
        W = W @ A + torch.outer(beta * v, k)
        y = W @ q
        yield [Reads(q, [(A, beta * v, k)])]


def delta_rnn(
    memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int
) -> Iterator[list[Reads]]:
    W, R, y = state
    for t, (q, k, v, rk, rv, beta, rbeta) in enumerate(parts):
        W, R, y = (0 * W, 0 * R, 0 * y) if reset[t] else (W, R, y)
        q, k, rk, beta, rbeta = q.softmax(0), k.softmax(0), rk.softmax(0), beta.sigmoid(), rbeta.sigmoid()
        p = y if memory.variant == "A" else y.softmax(0)
        A, RA = correct(k, beta * k), correct(rk, rbeta * rk)
        W, R = W @ A + torch.outer(beta * v, k), R @ RA + torch.outer(rbeta * rv, rk)
        y = W @ q + R @ p
        y = y.softmax(0) if memory.variant == "A" else y
        yield [Reads(q, [(A, beta * v, k)]), Reads(p, [(RA, rbeta * rv, rk)])]


def delta_delta(
    memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int
) -> Iterator[list[Reads]]:
    M = state[0]
    for t, (q, k, v, beta) in enumerate(parts):
        q, k, beta = features(memory, q), features(memory, k), beta.sigmoid()
        M = (0 * M if reset[t] else M) @ correct(k, beta * k) + torch.outer(beta * v, k)
        q, k, v, beta = (M @ q).split((h, h, h, 1))
        q, k, beta = features(memory, q), features(memory, k), beta.sigmoid()
        yield [Reads(q, [(correct(k, beta * k), beta * v, k)])]


def delta_mlp(
    memory: Any, parts: Parts, state: list[Tensor], reset: list[bool], n: int
) -> Iterator[list[Reads]]:
    f = lambda x: (F.elu(x) + 1) / ((F.elu(x) + 1).sum() + 1e-5)  # noqa: E731
    matrices = [*state]
    for t, (q, *emitted) in enumerate(parts):
        one, x = torch.ones(1, dtype=q.dtype), q
        reads = [Reads(one, [(0 * eye(one), q, one)])]
        for i, norm in enumerate(memory.norms):
            k1, v1, k2, v2, beta1, beta2 = emitted[6 * i : 6 * i + 6]
            k1, k2, beta1, beta2 = f(k1), f(k2), beta1.sigmoid(), beta2.sigmoid()
            y = f((x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * norm.weight + norm.bias)
            for at, k, v, beta in ((2 * i, k1, v1, beta1), (2 * i + 1, k2, v2, beta2)):
                W = 0 * matrices[at] if reset[t] else matrices[at]
                matrices[at] = W + torch.outer(beta * (v - W @ k), k)
            hidden = f(matrices[2 * i] @ y)
            reads.append(Reads(hidden, [(correct(k2, beta2 * k2), beta2 * v2, k2)]))
            x = x + matrices[2 * i + 1] @ hidden
        yield reads


def delta_lstm(trace: MemoryTrace, memory: Any, b: int, head: int) -> Iterator[list[list[Reads]]]:
    """For each step the matrices of the three gates of a head, with an LSTM of their readings."""
    W, R = ([*part[b, 3 * head : 3 * head + 3]] for part in trace.before[:2])
    y, c = (part[b, head] for part in trace.before[2:])
    f = lambda x: (F.elu(x) + 1) / ((F.elu(x) + 1).sum() + 1e-5)  # noqa: E731
    for t in range(len(trace.y)):
        if trace.reset[t, b]:
            W, R, y, c = [0 * x for x in W], [0 * x for x in R], 0 * y, 0 * c
        p = y if memory.variant == "A" else y.softmax(0)
        vectors, betas = (part[t, b, head] for part in trace.projections)
        gates, z, z_u = [], [], None
        for i in range(3):
            q, k, v, rk, rv = vectors[5 * h * i : 5 * h * (i + 1)].split(h)
            beta, rbeta = betas[2 * i : 2 * i + 2].sigmoid()
            q, k, rk = f(q), f(k), rk.softmax(0)
            A, RA = correct(k, beta * k), correct(rk, rbeta * rk)
            W[i], R[i] = W[i] @ A + torch.outer(beta * v, k), R[i] @ RA + torch.outer(rbeta * rv, rk)
            z.append(W[i] @ q + R[i] @ p)
            z_u = W[i] @ q if i == 1 else z_u
            gates.append([Reads(q, [(A, beta * v, k)]), Reads(p, [(RA, rbeta * rv, rk)])])
        i, u, o = z[0].sigmoid(), z[1] if memory.variant == "D" else z[1].sigmoid(), z[2].sigmoid()
        c = i * u + (1 - i) * c
        y = c * o
        y = y.softmax(0) if memory.variant == "A" else y + z_u if memory.variant == "C" else y
        torch.testing.assert_close(y, trace.y[t, b, head], rtol=1e-11, atol=1e-13)
        yield gates


ACROSS_HEADS = {"kda": (4,), "gated_delta_net_2": (5,), "delta_product": (4,), "rwkv7": (3, 4)}
"""which projections a head needs of all heads"""
FORMS: dict[str, tuple[str, dict[str, Any], Definition]] = {
    "sum": ("linear_transformer", {}, additive),
    "sum, attention": ("linear_transformer", {"normalise": "attention"}, additive),
    "sum, dpfp": ("linear_transformer", {"feature_map": "dpfp", "dpfp_nu": 2, "normalise": "both"}, additive),
    "gated": ("gated_linear_attention", {}, gated),
    "gated, value": ("gated_linear_attention", {"gate": "value"}, gated),
    "gated, value, dpfp": (
        "gated_linear_attention",
        {"gate": "value", "feature_map": "dpfp", "dpfp_nu": 2},
        gated,
    ),
    "gated, key": ("gated_linear_attention", {"gate": "key"}, gated),
    "gated_rule": ("gated_rule", {}, peng),
    "delta": ("delta_net", {}, delta),
    "delta, attention": ("delta_net", {"normalise": "both"}, delta),
    "delta, root2": ("delta_net", {"feature_map": "root2", "normalise": "none"}, delta),
    "delta, convolved": ("delta_net", {"short_conv": 3, "head_norm": True, "output_gate": "silu"}, delta),
    "gated delta": ("gated_delta_net", {"beta_max": 2}, delta),
    "gated delta, sum": ("gated_delta_net", {"feature_map": "elu", "normalise": "sum"}, delta),
    "momentum": ("momentum_delta_net", {}, momentum),
    "momentum, dpfp": ("momentum_delta_net", {"feature_map": "dpfp", "dpfp_nu": 2}, momentum),
    "kda": ("kda", {}, kda),
    "gated delta 2": ("gated_delta_net_2", {"short_conv": 2}, kda),
    "product 1": ("delta_product", {"writes": 1}, product),
    "product 2": ("delta_product", {}, product),
    "product 3": ("delta_product", {"writes": 3, "gated": True}, product),
    "product 4": ("delta_product", {"writes": 4, "gated": True}, product),
    "rwkv7": ("rwkv7", {}, rwkv7),
    "rdn": ("rdn", {}, rdn),
    "rdn, convolved": ("rdn", {"short_conv": 2}, rdn),
    "delta_rnn": ("delta_rnn", {}, delta_rnn),
    "delta_rnn A": ("delta_rnn", {"variant": "A", "short_conv": 2}, delta_rnn),
    "delta_delta": ("delta_delta_net", {}, delta_delta),
    "delta_mlp": ("delta_mlp", {}, delta_mlp),
    "delta_mlp, blocks": ("delta_mlp", {"blocks": 2, "published": True, "short_conv": 2}, delta_mlp),
}
LSTMS = {f"delta_lstm {variant}": ("delta_lstm", {"variant": variant}) for variant in "ABCD"}
ATTENTION: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax_attention", {"window": 3}),
    "softmax, gated": ("softmax_attention", {"window": 2, "gated": True, "positions": True}),
    "exp, gated": ("softmax_attention", {"window": 3, "gated": True, "normalise": False}),
    "gtrxl": ("gtrxl", {"window": 3, "short_conv": 2}),
    "transformer": ("transformer", {"window": 9}),
    "deltaformer": ("deltaformer", {"window": 3}),
    "deltaformer, groups": ("deltaformer", {"window": 2, "groups": 3, "second": "exp", "first": "relu"}),
    "deltaformer, linear": ("deltaformer", {"window": 8, "first": "linear", "second": "linear"}),
    "deltaformer, scalar": ("deltaformer", {"window": 2, "gates": "scalar"}),
}
EVERY = {**{name: case[:2] for name, case in FORMS.items()}, **LSTMS, **ATTENTION}


def memory_of(core: str, options: dict[str, Any]) -> FastWeights:
    memory: FastWeights = make_core(core, 7, num_layers=1, **SIZES, **options).memories()[0].double()
    with torch.no_grad():
        for parameter in memory.parameters():  # so that none is what it began as
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return memory


def unrolled(name: str, reset: Tensor) -> tuple[FastWeights, MemoryTrace, LinearForm]:
    """A memory's trace from a state that is not zero, and its linear form."""
    core, options = EVERY[name]
    memory = memory_of(core, options)
    state = tuple(torch.rand(B, *part.shape, dtype=torch.float64) for part in memory.layer_state_parts())
    if core == "deltaformer":  # filled or not
        state = (*state[:2], state[2].round(), *state[3:])
    if name in ATTENTION:
        state = (state[0], state[1] * state[2].unsqueeze(-1), *state[2:])  # as decays leave it
    with torch.no_grad():
        _, trace = memory(memory.slow_net(torch.randn(len(reset), B, D).double()), state, reset)
        form = memory.linear_form(trace)
    assert form is not None
    return memory, trace, form


def resets() -> Iterator[Tensor]:
    for pattern in RESET_PATTERNS:
        yield make_reset(pattern, 6, B)
    yield make_reset("first", 1, B)
    yield make_reset("none", 1, B)


def by_matrices(steps: list[list[Reads]], initial: list[Tensor], reset: list[bool]) -> Iterator[Tensor]:
    """For each reading the shares of its writes `[t + 1, S, V]` and, last, of the initial state `[1, V]`."""
    for t in range(len(steps)):
        found = [[] for _ in range(t + 1)]
        rest = torch.zeros_like(initial[0][:, 0])
        for place, W in enumerate(initial):
            product = torch.eye(W.shape[1], dtype=W.dtype)
            left = torch.eye(W.shape[0], dtype=W.dtype)
            alive = True
            for j in range(t, -1, -1):
                step, own = steps[j][place], []
                for A, u, k in reversed(step.writes):
                    own.insert(0, alive * left @ torch.outer(u, k) @ product @ steps[t][place].q)
                    product = A @ product
                found[j] += own
                left = left if step.left is None else left @ torch.diag(step.left)
                alive = alive and not reset[j]
            rest = rest + alive * left @ W @ product @ steps[t][place].q
        yield torch.stack([torch.stack(each) for each in found]), rest


def assert_shares(got: Shares, b: int, n: int, writes: Tensor, initial: Tensor) -> None:
    """Within 1e-12 of the sum of the shares' norms."""
    scale = writes.norm(dim=-1).sum() + initial.norm()
    assert got.writes[:, b, n].shape == writes.shape
    assert (got.writes[:, b, n] - writes).norm(dim=-1).max() <= 1e-12 * scale
    assert (got.initial[b, n] - initial).norm() <= 1e-12 * scale
    assert (got.reading[b, n] - writes.sum((0, 1)) - initial).norm() <= 1e-12 * scale


def matrices_before(core: str, state: list[Tensor]) -> list[Tensor]:
    """A head's matrices before the first step, in the order of what its definition yields."""
    match core:
        case "delta_rnn":
            return state[:2]
        case "delta_delta_net":
            return state[1:]
        case "delta_mlp":
            return [torch.zeros_like(state[1][:, :1]), *state[1::2]]
        case "momentum_delta_net":
            return [torch.cat(state, 1)]
        case "rwkv7":
            return [state[0], torch.zeros_like(state[0][:, :1])]
    return state[:1]


@pytest.mark.parametrize("name", FORMS)
def test_of_fast_weights(name: str, seed: int) -> None:
    core, _, definition = FORMS[name]
    for reset in resets():
        memory, trace, form = unrolled(name, reset)
        got = [shares(form, t) for t in range(len(reset))]
        for b in range(B):
            for n in range(H):
                across = ACROSS_HEADS.get(core, ())
                parts = [
                    [
                        p[t, b].flatten() if i in across else p[t, b, n]
                        for i, p in enumerate(trace.projections)
                    ]
                    for t in range(len(reset))
                ]
                state = [part[b, n] for part in trace.before]
                rows = reset[:, b].tolist()
                with torch.no_grad():
                    steps = [*definition(memory, parts, state, rows, n)]
                initial = matrices_before(core, state)
                for t, (writes, rest) in enumerate(by_matrices(steps, initial, rows)):
                    assert_shares(got[t], b, n, writes, rest)
        read = torch.stack([each.reading for each in got])
        read = read.softmax(-1) if name == "delta_rnn A" else read
        torch.testing.assert_close(read, trace.y, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(
            readings(form), torch.stack([each.reading for each in got]), rtol=1e-11, atol=1e-12
        )


@pytest.mark.parametrize("name", LSTMS)
def test_of_the_gates_of_a_delta_lstm(name: str, seed: int) -> None:
    for reset in resets():
        memory, trace, form = unrolled(name, reset)
        got = [shares(form, t) for t in range(len(reset))]
        for b in range(B):
            for head in range(H):
                steps = [*delta_lstm(trace, memory, b, head)]
                for gate in range(3):
                    n = 3 * head + gate
                    initial = [trace.before[0][b, n], trace.before[1][b, n]]
                    of_gate = [each[gate] for each in steps]
                    for t, (writes, rest) in enumerate(by_matrices(of_gate, initial, reset[:, b].tolist())):
                        assert_shares(got[t], b, n, writes, rest)


def kernel(kind: str, scores: Tensor) -> Tensor:
    if kind == "softmax":
        return scores.softmax(0) if len(scores) else scores
    return {"exp": scores.exp(), "relu": scores.relu(), "linear": scores}[kind]


def seen(reset: Tensor, b: int, t: int, slots: int) -> range:
    """The slots that step t sees, of the state's and all steps': not those of an earlier episode."""
    begun = max([i for i in range(t + 1) if reset[i, b]], default=-slots)
    return range(max(t, slots + begun), slots + t + 1)


@pytest.mark.parametrize("name", [name for name, (core, _) in ATTENTION.items() if core != "deltaformer"])
def test_of_attention(name: str, seed: int) -> None:
    """Its weights, times the values with what their decays have left of them."""
    for reset in resets():
        memory, trace, form = unrolled(name, reset)
        q, k, v, *gate = trace.projections
        T, N = len(q), memory.window
        for b in range(B):
            for n in range(H):
                keys = torch.cat((trace.before[0][b, n], k[:, b, n]))
                values = torch.cat((trace.before[1][b, n], v[:, b, n]))
                live = torch.cat((trace.before[2][b, n], torch.ones(T).double()))
                rate = gate[0][:, b, n, 0].sigmoid() ** (1 / 16) if gate else torch.ones(T).double()
                for t in range(T):
                    weights, total = torch.zeros(N + t + 1).double(), 0.0
                    for slot in seen(reset, b, t, N):
                        with torch.no_grad():
                            score = score_of(memory, q[t, b, n], keys[slot], n, N + t - slot)
                        weights[slot] = score.exp() * rate[max(slot - N + 1, 0) : t + 1].prod()
                        total += weights[slot] * live[slot]
                    weights = weights / total if memory.normalise else weights
                    share = weights.unsqueeze(-1) * values[: N + t + 1]
                    assert_shares(shares(form, t), b, n, share[N:].unsqueeze(1), share[:N].sum(0))
        torch.testing.assert_close(readings(form), trace.y, rtol=1e-11, atol=1e-12)


def score_of(memory: Any, q: Tensor, k: Tensor, n: int, age: int) -> Tensor:
    score = q @ k
    if hasattr(memory, "waves"):
        by_head = memory.to_ages.weight[n * h : (n + 1) * h]
        wave = memory.waves[age - 1] if age else torch.zeros(D).double()
        score = (q + memory.content_bias[n]) @ k + (q + memory.age_bias[n]) @ by_head @ wave
    bias = memory.bias[n, age - 1] if memory.bias is not None and age else 0.0
    return score * h**-0.5 + bias


@pytest.mark.parametrize("name", [name for name, (core, _) in ATTENTION.items() if core == "deltaformer"])
def test_of_a_deltaformer(name: str, seed: int) -> None:
    """Its writes solve a triangular system: those of one step reach a reading through later ones, too."""
    for reset in resets():
        memory, trace, form = unrolled(name, reset)
        q, k, v, w, *gates = trace.projections
        T, N, G = len(q), memory.window, memory.groups
        for b in range(B):
            for n in range(H // G):
                alpha, beta = (gate[:, b, n, 0].sigmoid() for gate in gates) if gates else scalars(memory, T)
                keys = torch.cat((trace.before[0][b, n], k[:, b, n]))
                values = torch.cat((trace.before[1][b, n], alpha.unsqueeze(-1) * v[:, b, n]))
                filled = [*(trace.before[2][b, n] > 0), *[True] * T]
                mix = torch.ones(1) if memory.mix is None else memory.mix.detach()[n]
                system, reads = torch.eye(N + T).double(), torch.zeros(G, T, N + T).double()
                for t in range(T):
                    slots = [slot for slot in seen(reset, b, t, N) if filled[slot]]
                    for g in range(G):
                        own = slice(g * h, (g + 1) * h)
                        found = kernel(memory.first, keys[slots[:-1]] @ w[t, b, n, own] * h**-0.5)
                        system[N + t, slots[:-1]] += beta[t] * mix[g] * found / G
                        reads[g, t, slots] = kernel(memory.second, keys[slots] @ q[t, b, n, own] * h**-0.5)
                for g in range(G):
                    weights = reads[g] @ torch.linalg.inv(system)
                    for t in range(T):
                        share = weights[t].unsqueeze(-1) * values
                        writes, initial = share[N : N + t + 1].unsqueeze(1), share[:N].sum(0)
                        assert_shares(shares(form, t), b, n * G + g, writes, initial)
        torch.testing.assert_close(readings(form).flatten(2), trace.y.flatten(2), rtol=1e-11, atol=1e-12)


def scalars(memory: Any, steps: int) -> tuple[Tensor, Tensor]:
    return memory.alpha.detach().expand(steps), memory.beta.detach().expand(steps)


def test_a_linear_deltaformer_is_a_delta_net(seed: int) -> None:
    """With w = k, α = 1: what its writes erase of earlier ones is what the delta rule with β = 1 erases."""
    q, k, v = (torch.randn(7, B, H, h).double() for _ in range(3))
    k, reset = k / k.norm(dim=-1, keepdim=True), make_reset("none", 7, B)
    reset[3, 1] = True
    delta_net = delta_form(q, k, v, torch.ones(7, B, H).double(), torch.zeros(B, H, h, h).double(), reset)
    steps, episode = torch.arange(7), reset.cumsum(0)
    read, erase = torch.zeros(7, B, H, 1, 8).double(), torch.zeros(7, B, H, 7).double()
    for t in range(7):
        for j in range(t + 1):
            same = (episode[t] == episode[j]).unsqueeze(-1)
            read[t, :, :, 0, 7 + j - t] = same * (q[t] * k[j]).sum(-1)
            if j < t:
                erase[t, :, :, 7 + j - t] = same * (k[t] * k[j]).sum(-1)
    u = torch.cat((torch.zeros(7, B, H, h).double(), v))
    deltaformer = AttentionForm(read, u, reset, erase)
    for t in steps.tolist():
        for one, other in zip(shares(deltaformer, t), shares(delta_net, t), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


LONG = {
    "linear_transformer": {"normalise": "attention"},
    "gated_linear_attention": {"gate": "value"},
    "momentum_delta_net": {},
    "rdn": {},
    "delta_rnn": {"variant": "A"},
    "delta_product": {"writes": 3, "gated": True},
    "hybrid": {"layers": "rwkv7,deltaformer,delta_lstm,gtrxl"},
}


@pytest.mark.parametrize("core", LONG)
def test_sums_over_a_thousand_steps(core: str, seed: int) -> None:
    """In every layer, with resets within; the last reading is what the layer itself read."""
    made = make_core(core, 7, **SIZES, **LONG[core]).double()
    state = tuple(torch.rand_like(part) for part in made.initial_state(B))
    x, reset, traces = torch.randn(1000, B, 7).double(), torch.zeros(1000, B, dtype=torch.bool), []
    reset[400, 0] = True  # row 1 still has its initial state
    with watch_traces(made, lambda layer, memory, trace: traces.append(trace)):
        forms = linear_forms(made, x, state, reset)
    for trace, form in zip(traces, forms, strict=True):
        read = readings(form)
        for t in (399, 999):
            got = shares(form, t)
            scale = got.writes.norm(dim=-1).sum((0, 3)) + got.initial.norm(dim=-1)
            assert ((got.reading - read[t]).norm(dim=-1) <= 1e-12 * scale).all()
            assert not got.initial[0].any() or t < 400
            has_left = isinstance(form, AttentionForm) and form.erase_weights is None  # its window
            assert got.initial[1].any() != has_left
            assert not got.writes[:400, 0].any() or t < 400
        if core == "delta_rnn":
            read = read.softmax(-1)
        if read.numel() == trace.y.numel():  # not of an LSTM, whose readings enter its gates
            torch.testing.assert_close(read.flatten(2), trace.y.flatten(2), rtol=1e-9, atol=1e-11)
    whole = core_shares(made, x, state, reset, 999)
    assert all(
        torch.equal(one.writes, shares(form, 999).writes) for one, form in zip(whole, forms, strict=True)
    )


@pytest.mark.parametrize("name", EVERY)
def test_leaving_a_write_out_takes_its_share_away(name: str, seed: int) -> None:
    reset = make_reset("none", 9, B)
    reset[5, 1] = True
    _, _, form = unrolled(name, reset)
    for exact, tolerance in ((form, 1e-12), (single(form), 1e-5)):
        whole, every = readings(exact), [shares(exact, t) for t in range(9)]
        for step in (0, 3, 5):
            for write in (None, *range(every[0].writes.shape[3])):
                without, of = (
                    without_write(exact, step, write),
                    slice(None) if write is None else slice(write, write + 1),
                )
                for t in range(9):
                    share = (
                        every[t].writes[step, :, :, of].sum(2) if t >= step else torch.zeros_like(whole[t])
                    )
                    scale = every[t].writes.norm(dim=-1).sum((0, 3)) + every[t].initial.norm(dim=-1)
                    off = (whole[t] - without[t] - share).norm(dim=-1)
                    assert (off <= tolerance * torch.maximum(scale, whole.norm(dim=-1).max())).all()
                assert torch.equal(without[5:, 1], whole[5:, 1]) or step == 5
        assert not torch.equal(without_write(exact, 3), whole)


def single(form: LinearForm) -> LinearForm:
    def convert(x: Any) -> Any:
        if isinstance(x, tuple):
            return type(x)(*map(convert, x))
        return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x

    converted: LinearForm = convert(form)
    return converted


@pytest.mark.parametrize("name", EVERY)
def test_fractions_are_projections_and_sum_to_one(name: str, seed: int) -> None:
    reset = make_reset("none", 7, B)
    reset[0, 0] = reset[4, 1] = True
    _, _, form = unrolled(name, reset)
    by_head, over_heads = fraction_matrix(form), fraction_matrix(form, over_heads=True)
    for t in range(7):
        of = shares(form, t)
        one, together = fractions(of), fractions(of, over_heads=True)
        # features of dpfp may all be 0, and what is read is
        square = of.reading.square().sum(-1)
        for each, along, size in ((one, -1, square), (together, (-2, -1), square.sum(-1))):
            assert (each.steps[:, size == 0] == 0).all()
            for j in range(t + 1):
                projection = (of.writes[j].sum(2) * of.reading).sum(along)
                torch.testing.assert_close(each.steps[j] * size, projection, rtol=1e-9, atol=1e-12)
            total = each.steps.sum(0) + each.initial
            torch.testing.assert_close(total, (size > 0).double(), rtol=1e-8, atol=1e-8)
        for matrix, each in ((by_head, one), (over_heads, together)):
            torch.testing.assert_close(matrix.steps[t, : t + 1], each.steps, rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(matrix.initial[t], each.initial, rtol=1e-8, atol=1e-10)
            assert not matrix.steps[t, t + 1 :].any() and matrix.steps.any()
    assert not by_head.initial[:, 0].any() and not over_heads.steps[4:, :4, 1].any()


def random_form(T: int, S: int) -> DeltaForm:
    """With S writes a step, decays of rows and columns, and a reset in the second row's middle."""
    k, e = (torch.randn(T, B, H, S, h).double() * 0.4 for _ in range(2))
    u, decay, value_decay = torch.randn(T, B, H, S, 3), torch.rand(T, B, H, S, h), torch.rand(T, B, H, 3)
    writes = Writes(torch.randn(T, B, H, h).double(), k, u.double(), e, decay.double())
    reset = make_reset("none", T, B)
    reset[T // 2, 1] = True
    return DeltaForm(writes, torch.randn(B, H, 3, h).double(), reset, value_decay.double())


def pieces(core: FastWeightCore, x: Tensor, state: State, reset: Tensor, sizes: list[int]) -> LinearForm:
    """The form of the core's only layer, joined from those of consecutive unrolls."""
    forms = []
    for part, begins in zip(x.split(sizes), reset.split(sizes), strict=True):
        forms += linear_forms(core, part, state, begins)
        with torch.no_grad():
            _, state = core.unroll(part, state, begins)
    return join([form for form in forms if form])


@pytest.mark.parametrize("name", EVERY)
def test_consecutive_unrolls_are_joined(name: str, seed: int) -> None:
    """Steps of an actor, or unrolls of several lengths: as one unroll."""
    core, options = EVERY[name]
    made = make_core(core, 7, num_layers=1, **SIZES, **options).double()
    assert isinstance(made, FastWeightCore)
    x, reset = torch.randn(9, B, 7).double(), make_reset("none", 9, B)
    reset[5, 1] = True
    with torch.no_grad():
        _, state = made.unroll(torch.randn(4, B, 7).double(), made.initial_state(B), reset[:4])
    (whole,) = linear_forms(made, x, state, reset)
    assert whole is not None
    for sizes in ([1] * 9, [3, 1, 5], [9]):
        joined = pieces(made, x, state, reset, sizes)
        assert torch.equal(joined.reset, reset)
        torch.testing.assert_close(readings(joined), readings(whole), rtol=1e-10, atol=1e-11)
        for t in (0, 4, 8):
            for one, other in zip(shares(joined, t), shares(whole, t), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def test_what_is_joined_is_of_one_layer(seed: int) -> None:
    delta, attention = (
        unrolled("delta", make_reset("none", 3, B))[2],
        unrolled("softmax", make_reset("none", 3, B))[2],
    )
    with_rates = unrolled("gated, value", make_reset("none", 3, B))[2]
    for forms in ([], [delta, attention], [attention, delta], [delta, with_rates]):
        with pytest.raises(ValueError, match="give those of one layer's consecutive unrolls"):
            join(forms)


@pytest.mark.parametrize("S", [1, 2, 3])
def test_rows_decay_once_a_step(S: int, seed: int) -> None:
    form = random_form(7, S)
    whole, matrix = readings(form), fraction_matrix(form)
    for t in range(7):
        got = shares(form, t)
        torch.testing.assert_close(got.reading, whole[t], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(matrix.steps[t, : t + 1], fractions(got).steps, rtol=1e-8, atol=1e-10)
        for j in range(t + 1):
            for i in range(S):
                missed = whole[t] - without_write(form, j, i)[t]
                torch.testing.assert_close(got.writes[j, :, :, i], missed, rtol=1e-10, atol=1e-12)


def test_momentum_is_for_one_write_a_step(seed: int) -> None:
    form = random_form(4, 2)._replace(momentum=torch.rand(4, B, H).double(), value_decay=None)
    form = form._replace(C=torch.zeros_like(form.W))
    for use in (readings, fraction_matrix, lambda form: shares(form, 3), lambda form: without_write(form, 0)):
        with pytest.raises(
            ValueError, match="momentum with 2 writes a step; give each write a step of its own"
        ):
            use(form)


class TwiceMemory(DeltaMemory):
    """Another rule than what it inherits the form of."""

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, state = super().unroll(projections, state, reset)
        return 2 * y, state


class TwiceReadMemory(DeltaMemory):
    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        y, state = super().write_read(q, k, v, gates, state, reset)
        return 2 * y, state


class Twice:
    """Overrides `unroll` from beside the memory."""

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        y, after = super().unroll(projections, state, reset)  # type: ignore[misc]
        return 2 * y, after


class TwiceBesideMemory(Twice, KDAMemory):
    """Of which the form is further back than `unroll`."""


class ThriceRemovedMemory(TwiceMemory):
    """Inherits that there is none."""


class WithAFormMemory(TwiceMemory):
    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        form = DeltaMemory.linear_form(self, trace)
        assert isinstance(form, DeltaForm)
        return form._replace(writes=form.writes._replace(q=2 * form.writes.q))


class SameRuleMemory(DeltaMemory):
    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {}


@pytest.mark.parametrize(
    ("kind", "has_one"),
    [
        (TwiceMemory, False),
        (TwiceReadMemory, False),
        (TwiceBesideMemory, False),
        (ThriceRemovedMemory, False),
        (WithAFormMemory, True),
        (SameRuleMemory, True),
    ],
)
def test_a_form_is_of_the_rule_beside_which_it_is_written(
    kind: type[FastWeights], has_one: bool, seed: int
) -> None:
    memory, reset = kind(D, H), make_reset("none", 4, B)
    state = tuple(torch.rand(B, *part.shape) for part in memory.layer_state_parts())
    with torch.no_grad():
        _, trace = memory(memory.slow_net(torch.randn(4, B, D)), state, reset)
        form = memory.linear_form(trace)
    assert (form is not None) == has_one
    if form is not None:
        torch.testing.assert_close(readings(form), trace.y)


def test_of_a_reading_by_hand() -> None:
    """v = 2 under (1, 0); then half of it is erased, and 1 written under (0, 1); read by (1, 1) is 1 + 1."""
    one, zero = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    k = torch.stack((one, zero)).view(2, 1, 1, 1, 2)
    u = torch.tensor([2.0, 1.0]).view(2, 1, 1, 1, 1)
    a = torch.tensor([[1.0, 1.0], [0.5, 1.0]]).view(2, 1, 1, 1, 2)
    q = torch.ones(2, 1, 1, 2)
    form = DeltaForm(
        Writes(q, k, u, 0 * k, a), torch.tensor([[[[0.0, 4.0]]]]), torch.zeros(2, 1, dtype=torch.bool)
    )
    got = shares(form, 1)
    assert got.writes.flatten().tolist() == [1.0, 1.0] and got.initial.flatten().tolist() == [4.0]
    assert fractions(got).steps.flatten().tolist() == pytest.approx([1 / 6, 1 / 6])
    assert without_write(form, 0).flatten().tolist() == [4.0, 5.0]
    W, C = last_state(form)
    assert W.flatten().tolist() == [1.0, 5.0] and C is None
    nothing = form._replace(W=0 * form.W, writes=form.writes._replace(u=0 * u))
    assert not fractions(shares(nothing, 1)).steps.any() and not fraction_matrix(nothing).steps.any()


def tensors_of(part: Any) -> Iterator[Tensor]:
    """All tensors within tuples and lists."""
    if isinstance(part, Tensor):
        yield part
    elif part is not None:
        for each in part:
            yield from tensors_of(each)


def test_every_core_of_the_backbone_has_a_form(seed: int) -> None:
    for name in core_names():
        core = make_core(name, 7)
        x, reset = torch.randn(3, 2, 7), torch.zeros(3, 2, dtype=torch.bool)
        forms = linear_forms(core, x, core.initial_state(2), reset)
        assert (forms == []) == (name in OUTSIDE)
        assert None not in forms
        if isinstance(core, FastWeightCore):
            assert (
                len(forms)
                == len(core.memories())
                == len(core_shares(core, x, core.initial_state(2), reset, 2))
            )
        assert not any(module._forward_hooks for module in core.modules())
        assert not any(each.requires_grad for each in tensors_of(forms))


@pytest.mark.parametrize("name", [name for name in EVERY if name not in LSTMS])
def test_forms_are_exact_under_autocast(name: str, seed: int) -> None:
    core, options = EVERY[name]
    made = make_core(core, 7, **SIZES, **options)
    traces: list[MemoryTrace] = []
    x, reset = torch.randn(5, B, 7), make_reset("random", 5, B)
    with (
        torch.autocast("cpu", torch.bfloat16),
        watch_traces(made, lambda layer, memory, trace: traces.append(trace)),
    ):
        forms = linear_forms(made, x, made.initial_state(B), reset)
        read = [readings(form) for form in forms if form]
    for trace, y in zip(traces, read, strict=True):
        y = y.softmax(-1) if name == "delta_rnn A" else y
        torch.testing.assert_close(y.flatten(2), trace.y.flatten(2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "core", ["delta_net", "gated_linear_attention", "rwkv7", "rdn", "softmax_attention", "deltaformer"]
)
def test_a_broken_memory_ends_with_its_episode(core: str, seed: int) -> None:
    made = make_core(core, 7, **SIZES)
    x, reset = torch.randn(6, B, 7), torch.zeros(6, B, dtype=torch.bool)
    x[1, 0], reset[3] = torch.nan, True
    for form in linear_forms(made, x, made.initial_state(B), reset):
        assert form is not None
        parts = shares(form, 5)
        assert parts.writes.isfinite().all() and parts.reading.isfinite().all() and parts.reading.any()
        assert without_write(form, 4)[3:].isfinite().all()
        assert fraction_matrix(form).steps[3:].isfinite().all()


@pytest.mark.parametrize("core", ["softmax_attention", "gtrxl"])
def test_a_broken_step_ends_with_the_window(core: str, seed: int) -> None:
    """Within an episode: a nan of the state's newest slot and one of step 1 in a window of 3."""
    made = make_core(core, 7, num_layers=1, window=3, **SIZES)
    x, reset = torch.randn(9, B, 7), torch.zeros(9, B, dtype=torch.bool)
    _, state = made.unroll(x, made.initial_state(B), reset)
    state[0][0, :, :, -1], state[1][0, :, :, -1], x[1, 0] = torch.nan, torch.nan, torch.nan
    (form,) = linear_forms(made, x, tuple(part.detach() for part in state), reset)
    assert form is not None
    for over_heads in (False, True):
        matrix = fraction_matrix(form, over_heads)
        for t in range(9):
            parts = shares(form, t)  # row 0 is broken up to step 4
            assert parts.reading[0].isnan().any() == (t <= 4)
            assert matrix.steps[t, : t + 1, 0].isnan().any() == (t <= 4)
            assert parts.reading[1].isfinite().all() and fractions(parts).steps[:, 1].isfinite().all()
            if t > 4:
                assert parts.writes.isfinite().all() and not parts.writes[: t - 3].any()
                of = fractions(parts, over_heads)
                torch.testing.assert_close(of.steps.sum(0), torch.ones_like(of.initial))
                torch.testing.assert_close(matrix.steps[t, : t + 1], of.steps)
                assert not matrix.initial[t].any() and not of.initial.any()


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1.0, 1e25])
def test_fractions_of_readings_of_any_size(scale: float, seed: int) -> None:
    """Where single precision has no squares, too."""
    form = random_form(6, 2)
    small = form._replace(W=scale * form.W, writes=form.writes._replace(u=scale * form.writes.u))
    for over_heads in (False, True):
        exact, got = (fraction_matrix(each, over_heads) for each in (form, single(small)))
        size = exact.steps.abs().sum(1).max()
        assert (got.steps - exact.steps).abs().max() < 1e-4 * size
        assert (got.initial - exact.initial).abs().max() < 1e-4 * size
        of = fractions(shares(single(small), 5), over_heads)
        assert (of.steps - exact.steps[5]).abs().max() < 1e-4 * size


def test_fractions_of_a_broken_reading_are_nan(seed: int) -> None:
    form = random_form(6, 2)
    form.writes.u[3, 0, 0] = torch.nan
    for over_heads in (False, True):
        matrix, of = fraction_matrix(form, over_heads), fractions(shares(form, 4), over_heads)
        rows = (0,) if over_heads else (0, 0)
        assert of.steps[(slice(None), *rows)].isnan().all() and of.initial[rows].isnan()
        assert of.steps[:, 1].isfinite().all()
        assert matrix.steps[(4, slice(0, 5), *rows)].isnan().all()
        assert matrix.steps[:3].isfinite().all() and not matrix.steps[4, 5:].any()


def test_what_is_not_there_is_one_line() -> None:
    _, _, form = unrolled("product 2", make_reset("none", 4, B))
    for step in (-1, 4):
        with pytest.raises(ValueError, match=f"step is {step}; the unroll has steps 0 to 3"):
            shares(form, step)
        with pytest.raises(ValueError, match=f"step is {step}; the unroll has steps 0 to 3"):
            without_write(form, step)
        for core in ("delta_net", "delta_mlp", "lstm"):  # with a form or without
            made, x = make_core(core, 7), torch.randn(4, B, 7)
            with pytest.raises(ValueError, match=f"step is {step}; the unroll has steps 0 to 3"):
                core_shares(made, x, made.initial_state(B), make_reset("none", 4, B), step)
    with pytest.raises(ValueError, match="index is 2; give 0 to 1, or None for all writes of a step"):
        without_write(form, 0, 2)
