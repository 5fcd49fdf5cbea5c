"""Feature maps and normalisations against their definitions, and the memories that use them."""

from __future__ import annotations

import math

import pytest
import torch
from fastweight_helpers import assert_near, integer, make_reset
from torch import Tensor

from deltabeast.cores import make_core
from deltabeast.cores.features import Features
from deltabeast.cores.linear import read_before

SMALL = {"hidden_size": 16, "num_heads": 2, "ff_size": 24, "num_layers": 1}


def by_definition(features: Features, x: Tensor) -> Tensor:
    """One vector at a time."""
    d = len(x)
    match features.feature_map:
        case "elu":
            made = [float(z) + 1 if z > 0 else float(z.exp()) for z in x]
        case "relu":
            made = [max(float(z), 0.0) for z in x]
        case "softmax":
            made = [float(z.exp() / x.exp().sum()) for z in x]
        case "dpfp":  # Schlag et al. 2021, equation 37, with i - j for i + j
            both = [max(float(z), 0.0) for z in x] + [max(-float(z), 0.0) for z in x]
            made = [both[i] * both[i - j] for j in range(1, features.dpfp_nu + 1) for i in range(2 * d)]
        case "favor":
            assert features.random is not None
            m = len(features.random)
            half = float(x @ x) / 2
            signs = [(sign, row) for sign in (1, -1) for row in features.random]
            made = [float(torch.exp(sign * row @ x - half)) / (2 * m) ** 0.5 for sign, row in signs]
        case "tanh":
            made = [math.tanh(float(z)) for z in x]
        case _:
            length = float(x.norm()) / (2**0.5 if features.feature_map == "root2" else 1)
            made = [float(z) / length for z in x]
    total = sum(made) + 1e-5 if features.normalise in ("sum", "both") else 1.0
    return torch.tensor([each / total for each in made], dtype=x.dtype)


CASES = [
    *(("elu", normalise) for normalise in ("sum", "attention", "both", "none")),
    *(("relu", normalise) for normalise in ("sum", "none")),
    *(("dpfp", normalise) for normalise in ("sum", "attention", "both", "none")),
    *(("favor", normalise) for normalise in ("sum", "attention", "none")),
    *((name, "none") for name in ("softmax", "unit", "root2", "tanh")),
]


@pytest.mark.parametrize(("feature_map", "normalise"), CASES)
def test_maps(feature_map: str, normalise: str, seed: int) -> None:
    for _ in range(4):
        d = integer(2, 9)
        features = Features(
            d, feature_map, normalise, dpfp_nu=integer(1, 2 * d - 1), favor_features=integer(0, 20)
        )  # type: ignore[arg-type]
        features = features.double()
        x = 2 * torch.randn(2, 3, d, dtype=torch.float64)
        got = features(x)
        assert got.shape == (2, 3, features.size)
        for place in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
            i, j = place
            assert_near(feature_map, got[i, j], by_definition(features, x[i, j]), 1e-12)


def test_favor_estimates_the_kernel_of_softmax(seed: int) -> None:
    """Without bias: the mean over many draws comes near exp(x·y). Rows are orthogonal in groups."""
    # Short, since the variance grows as exp(|x + y|²), by rare values that are seldom in a sample.
    x, y = 0.2 * torch.randn(2, 16, dtype=torch.float64)
    estimates = []
    for _ in range(300):
        features = Features(16, "favor", "none", favor_features=16).double()
        estimates.append(features(x) @ features(y))
    drawn = torch.stack(estimates)
    error = drawn.std() / len(drawn) ** 0.5
    assert (drawn.mean() - (x @ y).exp()).abs() < 5 * error
    rows = Features(16, "favor", "none", favor_features=24).random
    assert rows is not None
    gram = rows @ rows.T
    for group in (slice(0, 16), slice(16, 24)):
        inside = gram[group, group]
        torch.testing.assert_close(inside, torch.diag(inside.diag()), rtol=0, atol=1e-4)
    lengths = torch.stack([Features(16, "favor", "none").random.norm(dim=-1) for _ in range(50)])  # type: ignore[union-attr]
    assert abs(lengths.square().mean().item() / 16 - 1) < 0.1 and lengths.std() > 0.3


def test_favor_is_a_weight_that_never_changes(seed: int) -> None:
    """Actors get it with the other weights, and so does whoever loads them."""
    core, twin = (make_core("delta_net", 7, **SMALL, feature_map="favor", favor_features=5) for _ in range(2))
    x, reset = torch.randn(4, 2, 7), make_reset("none", 4, 2)
    y, _ = core.unroll(x, core.initial_state(2), reset)
    assert not torch.allclose(twin.unroll(x, twin.initial_state(2), reset)[0], y)
    with torch.no_grad():
        for mine, its in zip(twin.parameters(), core.parameters(), strict=True):
            mine.copy_(its)
    assert torch.equal(twin.unroll(x, twin.initial_state(2), reset)[0], y)
    y.sum().backward()
    drawn = [p for p in core.parameters() if not p.requires_grad]
    assert [list(p.shape) for p in drawn] == [[5, 8]] and drawn[0].grad is None


@pytest.mark.parametrize(
    ("core", "options", "said"),
    [
        ("delta_net", {"feature_map": "unit"}, "feature_map unit has entries of any sign"),
        ("delta_net", {"feature_map": "root2", "normalise": "attention"}, "root2 has entries of any sign"),
        ("delta_net", {"feature_map": "softmax"}, "sums to one already; give normalise none"),
        (
            "linear_transformer",
            {"feature_map": "softmax", "normalise": "both"},
            "sums to one already; give normalise attention",
        ),
        ("delta_net", {"feature_map": "unit", "normalise": "both"}, "unit has entries of any sign"),
        ("linear_transformer", {"feature_map": "tanh"}, "tanh has entries of any sign, whose sum may be 0"),
        ("linear_transformer", {"feature_map": "tanh", "normalise": "attention"}, "give normalise none"),
        ("delta_net", {"feature_map": "tanh", "normalise": "none"}, "give unit with normalise none"),
        ("momentum_delta_net", {"feature_map": "tanh"}, "give unit with normalise none"),
        ("delta_net", {"feature_map": "dpfp", "dpfp_nu": 16}, "dpfp_nu is 16; give 1 to 15 for heads of 8"),
        ("delta_net", {"feature_map": "dpfp", "dpfp_nu": 0}, "dpfp_nu is 0; give 1 to 15 for heads of 8"),
        ("delta_net", {"feature_map": "favor", "favor_features": -1}, "favor_features is -1; give"),
        ("delta_net", {"feature_map": "favor", "favor_features": 10**8}, "give 1 to 65536, or 0 for 8"),
        ("delta_mlp", {"blocks": 0}, "blocks is 0; give 1 to 100"),
        ("delta_mlp", {"blocks": 10**8}, "blocks is 100000000; give 1 to 100"),
        ("delta_net", {"feature_map": "elu", "normalise": "none"}, "grow without bound; give sum"),
        (
            "delta_delta_net",
            {"feature_map": "dpfp", "normalise": "none"},
            "grow without bound; give sum",
        ),
        (
            "delta_net",
            {"feature_map": "root2", "normalise": "none", "beta_max": 2},
            "give unit, or beta_max 1",
        ),
        ("delta_net", {"beta_max": 3}, "beta_max is 3; it takes one of 1, 2"),
        ("delta_net", {"beta_start": 1.0}, "beta_start is 1.0; give a share between 0 and 1"),
        ("rdn", {"clock": -1}, "clock is -1; give 1 to 22 sine and cosine pairs, or 0 for none"),
        ("rdn", {"clock": 23}, "clock is 23; give 1 to 22 sine and cosine pairs, or 0 for none"),
        ("gated_delta_net", {"decay_temperature": 0.0}, "decay_temperature is 0.0; it must be positive"),
        ("gated_linear_attention", {"decay_temperature": -1.0}, "is -1.0; it must be positive"),
        (
            "gated_delta_net",
            {"normalise": "attention"},
            "normalise is 'attention'; it takes one of sum, none",
        ),
        ("gated_linear_attention", {"normalise": "attention"}, "that forget nothing; give sum or none"),
        (
            "delta_delta_net",
            {"normalise": "both"},
            "normalise both is for memories that forget nothing; give",
        ),
        ("gated_linear_attention", {"gate": "row"}, "gate is 'row'; it takes one of head, value, key"),
        (
            "gated_linear_attention",
            {"gate": "key", "feature_map": "dpfp"},
            "feature_map dpfp has 16 features",
        ),
    ],
)
def test_wrong_pairs_are_refused(core: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as raised:
        make_core(core, 7, **SMALL, **options)
    assert said in str(raised.value)


def test_read_before_is_zero_where_nothing_was_written(seed: int) -> None:
    k = torch.rand(6, 3, 2, 5, dtype=torch.float64)
    z0 = torch.rand(3, 2, 1, 5, dtype=torch.float64)
    reset = make_reset("none", 6, 3)
    reset[0, 1] = reset[4, 2] = True
    got = read_before(k, z0, reset)
    for b in range(3):
        z = z0[b, :, 0]
        for t in range(6):
            z = torch.zeros_like(z) if reset[t, b] else z
            torch.testing.assert_close(got[t, b, :, 0], (z * k[t, b]).sum(-1))
            z = z + k[t, b]
    assert (got[0, 1] == 0).all() and (got[4, 2] == 0).all()


@pytest.mark.parametrize("core", ["linear_transformer", "delta_net"])
@pytest.mark.parametrize("normalise", ["attention", "both"])
@pytest.mark.parametrize("feature_map", ["elu", "dpfp"])
def test_attention_normalisation_against_a_loop(
    core: str, feature_map: str, normalise: str, seed: int
) -> None:
    """Schlag et al. 2021, equations 17 to 20 and section 4.2's strict version: what is read, and what is
    found under a key, is divided by the sum of the weights with which it was written."""
    made = make_core(core, 7, **SMALL, feature_map=feature_map, normalise=normalise).double()
    (memory,) = made.memories()  # type: ignore[operator]
    T, B, H, h = 9, 2, 2, 8
    parts = [torch.randn(T, B, H, size, dtype=torch.float64) for size in memory.sizes]
    reset = make_reset("random", T, B)
    state = tuple(torch.rand(B, *part.shape, dtype=torch.float64) for part in memory.state_parts())
    y, end = memory.unroll(tuple(parts), state, reset)

    def phi(x: Tensor) -> Tensor:
        return by_definition(memory.features, x)

    for b in range(B):
        for n in range(H):
            W, z = state[0][b, n], state[1][b, n, 0]
            for t in range(T):
                if reset[t, b]:
                    W, z = torch.zeros_like(W), torch.zeros_like(z)
                q, k, v = phi(parts[0][t, b, n]), phi(parts[1][t, b, n]), parts[2][t, b, n]
                if core == "delta_net":
                    beta = parts[3][t, b, n].sigmoid()
                    held = z @ k
                    found = W @ k / held if held > 0 else torch.zeros(h, dtype=torch.float64)
                    W = W + beta * torch.outer(v - found, k)
                else:
                    W = W + torch.outer(v, k)
                z = z + k
                torch.testing.assert_close(y[t, b, n], W @ q / (z @ q + 1e-5))
            torch.testing.assert_close(end[0][b, n], W)
            torch.testing.assert_close(end[1][b, n, 0], z)


@pytest.mark.parametrize(
    ("core", "options"),
    [
        ("linear_transformer", {"feature_map": "dpfp", "dpfp_nu": 2}),
        ("linear_transformer", {"feature_map": "favor", "normalise": "attention"}),
        ("delta_net", {"feature_map": "root2", "normalise": "none"}),
        ("delta_net", {"feature_map": "unit", "normalise": "none", "beta_max": 2}),
        ("delta_net", {"feature_map": "dpfp", "normalise": "attention"}),
        ("delta_net", {"normalise": "both"}),
        ("linear_transformer", {"feature_map": "tanh", "normalise": "none"}),
        ("gated_rule", {"feature_map": "tanh", "normalise": "none"}),
        ("gated_delta_net", {"feature_map": "elu", "normalise": "sum", "beta_max": 2}),
        ("momentum_delta_net", {"feature_map": "relu"}),
        ("gated_linear_attention", {"gate": "value", "feature_map": "softmax", "normalise": "none"}),
        ("delta_net", {"beta_start": 0.9}),
        ("gated_delta_net", {"beta_start": 0.2, "beta_max": 2}),
        ("rdn", {"clock": 3}),
        ("delta_net", {"clock": 1, "residual": "gate"}),
    ],
)
def test_steps_equal_unrolls(core: str, options: dict[str, object], seed: int) -> None:
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        made = make_core(core, 7, **SMALL, **options).to(dtype)
        x, reset = torch.randn(12, 3, 7, dtype=dtype), make_reset("random", 12, 3)
        start = tuple(torch.rand_like(part) for part in made.initial_state(3))
        state, outputs = start, []
        with torch.no_grad():
            for t in range(12):
                y, state = made.step(x[t], state, reset[t])
                outputs.append(y)
        y, end = made.unroll(x, start, reset)
        assert_near("y", torch.stack(outputs), y.detach(), tolerance)
        for got, want in zip(state, end, strict=True):
            assert_near("state", got, want.detach(), tolerance)
        grads = torch.autograd.grad(y.square().sum(), [p for p in made.parameters() if p.requires_grad])
        assert all(grad.isfinite().all() and grad.any() for grad in grads)
