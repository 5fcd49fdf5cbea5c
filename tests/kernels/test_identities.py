"""What is known of the rules from elsewhere: where one is another, and what each does to what it holds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import assert_near, integer, make_reset
from fastweight_rules import assert_as_good_as_reference, make_inputs, run
from torch import Tensor

from deltabeast.cores.attention import DeltaFormerMemory
from deltabeast.kernels import (
    Rule,
    attention,
    delta_rule,
    deltaformer,
    gated_sum,
    momentum_delta,
    reference,
    rules,
)

BACKENDS = ("reference", "chunked", "native")
STATE = ("keys", "values", "live")
"""of attention"""


def run_with(rule: Rule, inputs: dict[str, Tensor], reset: Tensor, backend: str) -> dict[str, Tensor]:
    """Outputs and gradients of a rule, by names that two rules share, of inputs by name."""
    names = rule.shapes.names[:-1]
    results = run(rule, tuple(inputs[name] for name in names), reset, backend, torch.float32)
    return {name.replace("gradient ", ""): x for name, x in results.items() if name.startswith("out")} | {
        names[i]: results[f"gradient {i}"] for i in range(len(names))
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("general", "special"),
    [
        (rules.GATED_SUM, rules.SUM_RULE),
        (rules.GATED_DELTA, rules.DELTA_RULE),
        (rules.MOMENTUM_DELTA, rules.GATED_DELTA),
    ],
    ids=lambda rule: rule.name,
)
def test_one_rule_is_another(general: Rule, special: Rule, backend: str, seed: int) -> None:
    """Without decay the gated rules are those that they gate; without momentum that one is the gated rule."""
    for steps in (1, 2, 16, 40):
        inputs = dict(zip(general.shapes.names, make_inputs(general, steps), strict=False))
        if special is rules.GATED_DELTA:
            inputs["momentum"] = torch.zeros_like(inputs["momentum"])
            inputs["C"] = torch.zeros_like(inputs["C"])
        else:
            inputs["decay"] = torch.ones_like(inputs["decay"])
        reset = make_reset("random", steps, inputs["q"].shape[1])
        got, want = (run_with(rule, inputs, reset, backend) for rule in (general, special))
        shared = ["output 0", "output 1", *special.shapes.names[:-1]]
        if special is rules.GATED_DELTA:  # the loss there is of C, too, which is the last write
            shared = shared[:2]
        for name in shared:
            assert_near(name, got[name], want[name], 2e-5)


def one_hot(i: int, size: int) -> Tensor:
    return torch.eye(size)[i]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_delta_rule_keeps_what_the_gated_rule_lets_fade(backend: str, seed: int) -> None:
    """Schlag et al. 2021, appendix B: written under keys that are orthogonal, read back under the first."""
    size, beta = 5, 0.3
    k = torch.eye(size).view(size, 1, 1, size)
    v = torch.randn(size, 1, 1, size)
    q = one_hot(0, size).expand_as(k)
    strength, W = torch.full((size, 1, 1), beta), torch.zeros(1, 1, size, size)
    reset = make_reset("first", size, 1)
    y, _ = delta_rule(q, k, v, strength, W, reset, backend=backend)
    torch.testing.assert_close(y, beta * v[:1].expand_as(y))
    faded = torch.full((size, 1, 1, size), 1 - beta)
    y, _ = gated_sum(q, k, beta * v, faded, W, reset, backend=backend)
    shares = (1 - beta) ** torch.arange(size).view(-1, 1, 1, 1)
    torch.testing.assert_close(y, beta * v[:1] * shares)


@pytest.mark.parametrize("backend", BACKENDS)
def test_momentum_adds_up_what_is_written_again(backend: str, seed: int) -> None:
    """A pair that is written at every step reads back as v / (1 - η)."""
    steps, eta = 200, 0.9
    k = one_hot(1, 4).expand(steps, 1, 1, 4)
    v = torch.randn(3).expand(steps, 1, 1, 3)
    one, zeros = torch.ones(steps, 1, 1), torch.zeros(1, 1, 3, 4)
    y, *_ = momentum_delta(
        k, k, v, one, one, eta * one, zeros, zeros, make_reset("none", steps, 1), backend=backend
    )
    # What rounding makes adds up over 1 / (1 - η) steps, too.
    torch.testing.assert_close(y[-1], v[-1] / (1 - eta), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_length_root_two_swap_exactly(backend: str, seed: int) -> None:
    """`k = e_i - e_j`, `v = 0`, `β = 1`: the delta rule exchanges what is held under i and j. So do unit keys
    with β = 2."""
    steps, size = 400, 5
    order = list(range(size))
    k = torch.zeros(steps, 1, 1, size)
    reads = torch.zeros(steps, 1, 1, size)
    expected = []
    for t in range(steps):
        i = integer(0, size - 1)
        j = (i + integer(1, size - 1)) % size
        k[t, 0, 0, i], k[t, 0, 0, j] = 1, -1
        order[i], order[j] = order[j], order[i]
        place = integer(0, size - 1)
        reads[t, 0, 0, place] = 1
        expected.append(order[place])
    held = torch.randint(-9, 10, (size, size)).float()  # a value for each thing, as columns
    zeros, ones = torch.zeros(steps, 1, 1, size), torch.ones(steps, 1, 1)
    never = make_reset("none", steps, 1)
    y, _ = delta_rule(reads, k, zeros, ones, held.view(1, 1, size, size), never, backend=backend)
    assert torch.equal(y.view(steps, size), held.T[expected])
    y, _ = delta_rule(reads, k / 2**0.5, zeros, 2 * ones, held.view(1, 1, size, size), never, backend=backend)
    torch.testing.assert_close(y.view(steps, size), held.T[expected], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_sum_to_one_cannot_swap(backend: str, seed: int) -> None:
    """With entries from 0 to 1 that sum to one and β below 1, no write turns anything round: the part of what
    is held along k shrinks, but keeps its sign."""
    size = 6
    for _ in range(20):
        k = torch.rand(1, 1, 1, size).softmax(-1)
        held = torch.randn(1, 1, 1, size)
        beta = torch.rand(1, 1, 1)
        zeros = torch.zeros(1, 1, 1, 1)
        _, after = delta_rule(k, k, zeros, beta, held, make_reset("none", 1, 1), backend=backend)
        before, now = (held * k).sum(), (after * k).sum()
        assert (before * now >= 0).all() and now.abs() <= before.abs()


@pytest.mark.parametrize("backend", ["chunked", "native"])
def test_one_decay_for_all_rows(backend: str, seed: int) -> None:
    """Expanded, as cores with one gate a head hand it over: the same numbers and the gradient of the one."""
    for steps in (1, 5, 40):
        q, k, v, decay, W = make_inputs(rules.GATED_SUM, steps)
        reset = make_reset("random", steps, len(W))
        results = []
        for name, dtype in (("reference", torch.float64), (backend, torch.float32)):
            leaves = [x.to(dtype, copy=True).requires_grad_() for x in (q, k, v, decay[..., :1], W)]
            y, W_T = gated_sum(*leaves[:3], leaves[3].expand_as(v), leaves[4], reset, backend=name)
            grads = torch.autograd.grad(y.square().sum() + W_T.square().sum(), leaves)
            results.append((y, W_T, *grads))
        for i, (want, got) in enumerate(zip(*results, strict=True)):
            assert_near(str(i), got, want, 2e-5)


def taken_by(backend: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """C computes in float32."""
    return {name: x.float() for name, x in inputs.items()} if backend == "native" else inputs


def assert_same(got: Tensor, want: Tensor) -> None:
    exact = got.dtype is torch.float64
    rtol, atol = (1e-6, 1e-7) if exact else (1e-4, 1e-5)
    torch.testing.assert_close(got.double(), want.double(), rtol=rtol, atol=atol)


def attention_inputs(T: int, B: int, H: int, K: int, V: int, M: int) -> dict[str, Tensor]:
    """Those of attention without gate and bias, from an empty state, float64."""
    shapes = {"q": (T, B, H, K), "k": (T, B, H, K), "v": (T, B, H, V)}
    inputs = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    inputs["decay"], inputs["bias"] = torch.ones(T, B, H).double(), torch.zeros(T, B, H, M).double()
    return inputs | empty(B, H, K, V, M)


def empty(B: int, H: int, K: int, V: int, M: int) -> dict[str, Tensor]:
    shapes = {"keys": (B, H, M, K), "values": (B, H, M, V), "live": (B, H, M)}
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}


def causal(inputs: dict[str, Tensor]) -> Tensor:
    """PyTorch's attention of q, k, v `[T, B, H, size]`."""
    q, k, v = (inputs[name].permute(1, 2, 0, 3) for name in "qkv")
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).permute(2, 0, 1, 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_is_pytorchs(backend: str, seed: int) -> None:
    for T in (1, 7, 70, 150):
        inputs = attention_inputs(T, 2, 3, 8, 5, M=T)
        inputs, want = taken_by(backend, inputs), causal(inputs)
        y, keys, values, live = attention(**inputs, reset=make_reset("none", T, 2), backend=backend)
        assert_same(y, want)
        assert torch.equal(keys, inputs["k"].permute(1, 2, 0, 3)) and (live == 1).all()
        assert torch.equal(values, inputs["v"].permute(1, 2, 0, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_sees_its_window_and_episode_alone(backend: str, seed: int) -> None:
    T, M = 12, 3
    inputs = taken_by(backend, attention_inputs(T, 1, 1, 4, 4, M))
    inputs["v"].requires_grad_()
    reset = make_reset("none", T, 1)
    reset[6] = True
    y, *_ = attention(**inputs, reset=reset, backend=backend)
    for t in range(T):
        (grad,) = torch.autograd.grad(y[t].sum(), inputs["v"], retain_graph=True)
        first = max(t - M, 6 if t >= 6 else 0)
        assert [bool(row.any()) for row in grad] == [first <= i <= t for i in range(T)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("normalise", [True, False])
def test_gate_and_bias_of_attention(normalise: bool, backend: str, seed: int) -> None:
    """Zhong et al. 2025, equations 30 and 31: step i has at step t the weight of all gates in between."""
    T, M = 9, 5
    inputs = attention_inputs(T, 1, 1, 4, 3, M)
    inputs["decay"], inputs["bias"] = torch.rand_like(inputs["decay"]), torch.randn_like(inputs["bias"])
    never = make_reset("none", T, 1)
    y, *_ = attention(**taken_by(backend, inputs), reset=never, normalise=normalise, backend=backend)
    q, k, v, decay = (inputs[name][:, 0, 0] for name in ("q", "k", "v", "decay"))
    for t in range(T):
        total, read = 0.0, torch.zeros(3, dtype=torch.float64)
        for i in range(max(0, t - M), t + 1):
            bias = inputs["bias"][t, 0, 0, t - i - 1] if i < t else 0.0
            weight = ((q[t] @ k[i]) / 2 + bias).exp() * decay[i + 1 : t + 1].prod()
            total, read = total + weight, read + weight * v[i]
        assert_same(y[t, 0, 0], read / total if normalise else read)


def deltaformer_inputs(T: int, B: int, H: int, G: int, K: int, V: int, M: int) -> dict[str, Tensor]:
    q, w = torch.randn(2, T, B, H, G, K, dtype=torch.float64)
    inputs = attention_inputs(T, B, H, K, V, M)
    ones = {name: torch.ones(T, B, H).double() for name in ("alpha", "beta")}
    del inputs["decay"], inputs["bias"]
    return {**inputs, "q": q, "w": w, "mix": torch.ones(H, G).double(), **ones}


@pytest.mark.parametrize("backend", BACKENDS)
def test_deltaformer_with_linear_kernels_is_the_delta_rule(backend: str, seed: int) -> None:
    T, B, H, K, V = 40, 2, 2, 6, 4
    inputs = deltaformer_inputs(T, B, H, 1, K, V, M=T)
    k = inputs["k"] = inputs["k"] / inputs["k"].norm(dim=-1, keepdim=True)
    inputs["w"] = (k * K**0.5).unsqueeze(3)  # scores are divided by it
    never = make_reset("none", T, B)
    y, *_ = deltaformer(
        **taken_by(backend, inputs), reset=never, first="linear", second="linear", backend=backend
    )
    q = inputs["q"].squeeze(3) * K**-0.5
    W, beta = torch.zeros(B, H, V, K).double(), torch.ones(T, B, H).double()
    want, _ = delta_rule(q, k, inputs["v"], beta, W, never, backend="reference")
    assert_same(y.squeeze(3), want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_deltaformer_that_takes_nothing_out_is_attention(backend: str, seed: int) -> None:
    T = 80
    inputs = deltaformer_inputs(T, 2, 2, 1, 6, 4, M=T)
    inputs["beta"] = torch.zeros_like(inputs["beta"])
    never = make_reset("none", T, 2)
    y, *_ = deltaformer(
        **taken_by(backend, inputs), reset=never, first="exp", second="softmax", backend=backend
    )
    assert_same(y.squeeze(3), causal(inputs | {"q": inputs["q"].squeeze(3)}))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", reference.KERNELS)
def test_deltaformer_by_its_equations(first: str, backend: str, seed: int) -> None:
    """Three queries to a head of keys, a window, a reset: one number at a time."""
    T, G, K, V, M = 10, 3, 4, 3, 4
    inputs = deltaformer_inputs(T, 1, 1, G, K, V, M)
    inputs["mix"] = torch.randn(1, G, dtype=torch.float64)
    inputs["alpha"], inputs["beta"] = torch.rand(2, T, 1, 1, dtype=torch.float64)
    reset = make_reset("none", T, 1)
    reset[6] = True
    y, *_ = deltaformer(
        **taken_by(backend, inputs), reset=reset, first=first, second="softmax", backend=backend
    )
    q, k, v, w, alpha, beta = (inputs[n][:, 0, 0] for n in ("q", "k", "v", "w", "alpha", "beta"))
    u: list[Tensor] = []
    for t in range(T):
        earlier = range(max(0, t - M, 6 if t >= 6 else 0), t)
        found = torch.zeros(V, dtype=torch.float64)
        for j in range(G):
            scores = [float(k[i] @ w[t, j]) / 2 for i in earlier]
            total = sum(math.exp(s) for s in scores)
            kinds = {
                "exp": math.exp,
                "softmax": lambda s, total=total: math.exp(s) / total,
                "linear": lambda s: s,
                "relu": lambda s: max(s, 0.0),
                "round": lambda s: float(round(s)),
            }
            for i, score in zip(earlier, scores, strict=True):
                found = found + inputs["mix"][0, j] / G * kinds[first](score) * u[i]
        u.append(alpha[t] * v[t] - beta[t] * found)
        for j in range(G):
            weights = torch.stack([(k[i] @ q[t, j]) / 2 for i in (*earlier, t)]).softmax(0)
            want = weights @ torch.stack([u[i] for i in (*earlier, t)])
            assert_same(y[t, 0, 0, j], want)


@pytest.mark.parametrize("backend", ["chunked", "native"])
@pytest.mark.parametrize("learns_state", [False, True])
@pytest.mark.parametrize("rule", [*rules.ATTENTION.values(), *rules.DELTAFORMERS], ids=lambda rule: rule.name)
def test_a_window_that_is_partly_empty(rule: Rule, learns_state: bool, backend: str, seed: int) -> None:
    """What holds nothing has no weight, at the beginning of a window and within: none, some, all of it."""
    for steps in (1, 5, 40):
        inputs = dict(zip(rule.shapes.names, make_inputs(rule, steps), strict=False))
        B, H, M = inputs["live"].shape
        never = torch.arange(M) < torch.randint(0, M + 1, (B, H, 1))
        never[-1] = True
        dead = never | (torch.rand(B, H, M) < 0.2)
        inputs["live"] = inputs["live"].masked_fill(dead, 0)
        for name in ("keys", "values"):
            # Attention's values have live in them.
            whole = name == "values" and rule in rules.ATTENTION.values()
            inputs[name] = inputs[name].masked_fill((dead if whole else never).unsqueeze(-1), 0)
        reset = make_reset("random", steps, B)
        constant = () if learns_state else [i for i, name in enumerate(inputs) if name in STATE]
        given = tuple(inputs.values())
        want = run(rule, given, reset, "reference", torch.float64, constant=constant)
        got = run(rule, given, reset, backend, torch.float32, constant=constant)
        assert_as_good_as_reference(rule, given, reset, got, want)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("M", [3, 13, 40])
@pytest.mark.parametrize("rule", [*rules.ATTENTION.values(), *rules.DELTAFORMERS], ids=lambda rule: rule.name)
def test_what_is_broken_ends_with_its_episode_in_a_window_of_any_size(
    rule: Rule, M: int, value: float, seed: int
) -> None:
    """In C, whose vectors hold columns that are no longer seen: broken things beside them, and rates."""
    T, B = 12, 2
    sizes = {**dict.fromkeys(rule.shapes.letters, 4), "T": T, "B": B, "H": 1, "M": M}
    reset = make_reset("none", T, B)
    reset[4, 0] = True
    for name in rule.shapes.names[:-1]:
        if name == "mix":  # of no row
            continue
        inputs = dict(zip(rule.shapes.names, rule.random_inputs(sizes), strict=False))
        broken = inputs[name][0] if name in STATE else inputs[name][2, 0]
        broken.view(-1)[0] = value
        leaves = [x.requires_grad_() for x in inputs.values()]
        outputs = rule(*leaves, reset, backend="native")
        assert outputs[0][4:].isfinite().all() and outputs[0][:, 1].isfinite().all(), name
        assert all(x.isfinite().all() for x in outputs[1:]), name
        grads = torch.autograd.grad(outputs[0][4:].sum() + sum(x.sum() for x in outputs[1:]), leaves)
        assert all(g[4:].isfinite().all() for g, x in zip(grads, leaves, strict=True) if len(x) == T), name


@pytest.mark.parametrize("M", [3, 13])
def test_what_is_broken_leaves_the_window(M: int, seed: int) -> None:
    T = M + 20
    for name in ("k", "v", "decay"):
        inputs = {key: x.float() for key, x in attention_inputs(T, 1, 1, 4, 4, M).items()}
        inputs[name][2] = torch.nan
        y, *_ = attention(**inputs, reset=make_reset("none", T, 1), backend="native")
        assert y[2:3].isnan().any() or name == "decay"
        assert y[3 + M :].isfinite().all(), name
    inputs = {key: x.float() for key, x in attention_inputs(T, 1, 1, 4, 4, M).items()}
    inputs["live"][..., -1] = torch.nan
    y, *_ = attention(**inputs, reset=make_reset("none", T, 1), backend="native")
    assert y[0].isnan().any() and y[M:].isfinite().all()


def test_deltaformer_takes_the_kernels_of_its_core(seed: int) -> None:
    inputs = {name: x.float() for name, x in deltaformer_inputs(9, 2, 2, 1, 4, 3, M=5).items()}
    memory, reset = DeltaFormerMemory(8, 2), make_reset("none", 9, 2)
    kernels = {"first": memory.first, "second": memory.second}
    for got, want in zip(
        deltaformer(**inputs, reset=reset), deltaformer(**inputs, reset=reset, **kernels), strict=True
    ):
        assert torch.equal(got, want)


def test_round_has_the_gradient_of_linear(seed: int) -> None:
    scores, live = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.ones(5).double()
    rounded = reference.kernel("round", 3 * scores, live)
    assert torch.equal(rounded, (3 * scores).round())
    (grad,) = torch.autograd.grad(rounded.sum(), scores)
    assert torch.equal(grad, torch.full_like(grad, 3))


def test_the_delta_rule_converges_to_what_the_papers_derive(seed: int) -> None:
    """Keys W_k x, values W_v x of stationary x: W converges to (W_v C W_kᵀ)(W_k C W_kᵀ)⁻¹, C = E[x xᵀ].

    Zhong et al. 2025, section 2.2.2. With a square W_k that is W_v W_k⁻¹, exactly; else in the mean, as
    closely as small write strengths let it.
    """
    torch.manual_seed(seed)
    T, d, h = 8_000, 6, 4
    mixing, W_k = (
        torch.eye(n, d, dtype=torch.float64) + 0.2 * torch.randn(n, d, dtype=torch.float64) for n in (d, h)
    )
    W_v = torch.randn(h, d, dtype=torch.float64)
    x = torch.randn(T, d, dtype=torch.float64) @ mixing.T
    C = x.mT @ x / T

    def memory(W_k: Tensor, W_v: Tensor, x: Tensor, rate: float) -> Tensor:
        """Mean of W over the second half of the writes; `rate` is the strength for keys of mean length."""
        k, v = ((x @ W.T)[:, None, None] for W in (W_k, W_v))
        beta = torch.full_like(k[..., 0], rate) / k.square().sum(-1).mean()
        W, half = k.new_zeros(1, 1, v.shape[-1], k.shape[-1]), len(k) // 2
        reset = torch.zeros(half, 1, dtype=torch.bool)
        # A read by each unit vector is a column of W.
        _, W = reference.delta_rule(k[:half], k[:half], v[:half], beta[:half], W, reset)
        columns = []
        for unit in torch.eye(k.shape[-1], dtype=k.dtype):
            y, _ = reference.delta_rule(unit.expand_as(k[half:]), k[half:], v[half:], beta[half:], W, reset)
            columns.append(y.mean(0)[0, 0])
        return torch.stack(columns, -1)

    fixed = (W_v @ C @ W_k.T) @ (W_k @ C @ W_k.T).inverse()
    found = memory(W_k, W_v, x, rate=0.05)
    assert (found - fixed).norm() < 0.1 * fixed.norm()
    other = memory(W_k, W_v.flip(0), x, rate=0.05)
    assert (other - fixed).norm() > 0.3 * fixed.norm()
    square, W_v = W_k[:, :h], W_v[:, :h]
    assert_near("W", memory(square, W_v, x[:, :h], rate=0.2), W_v @ square.inverse(), 1e-6)
