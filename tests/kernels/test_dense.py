"""Dense layers in C against their definitions in float64, for every number of rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fastweight_helpers import assert_near, integer
from torch import Tensor
from torch.nn import functional as F

from deltabeast.cores import make_core
from deltabeast.kernels.native import compiling, dense

ROWS = (1, 3, 8, 9, 16, 17, 32, 33)
pytestmark = pytest.mark.skipif(
    compiling.problem("dense.c", "LANES=8") is not None, reason="no C compiler builds dense.c"
)


@pytest.fixture(autouse=True)
def _as_actors() -> None:
    torch.set_grad_enabled(False)
    yield
    torch.set_grad_enabled(True)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape)


def assert_sums_near(
    name: str, got: Tensor, x: Tensor, w: Tensor, b: Tensor | None = None, size: Tensor | None = None
) -> None:
    """Compare ``x w + b`` with the same in float64, by the size of its terms: they may cancel.

    Where ``x`` is a sum itself, ``size`` is that of its terms.
    """
    x, w, b = (each if each is None else each.double() for each in (x, w, b))
    size = x.abs() if size is None else size
    want, terms = F.linear(x, w, b), F.linear(size, w.abs(), b if b is None else b.abs())
    assert got.shape == want.shape, name
    worst = float(((got - want).abs() / terms).max())
    assert worst <= 1e-6, f"{name}: an error of {worst:.2e} of the terms' size"


@pytest.mark.parametrize("rows", ROWS)
def test_linear(rows: int, seed: int) -> None:
    for _ in range(5):
        K, N = integer(1, 70), integer(1, 70)
        x, w, b = normal(rows, K), normal(N, K), normal(N)
        got = dense.linear(x, w, b)
        assert_sums_near("product", dense.linear(x, w), x, w)
        assert_sums_near("sum", got, x, w, b)
        assert torch.equal(dense.linear(x, w, b, relu=True), got.relu())


@pytest.mark.parametrize("rows", ROWS)
def test_normalized_linear(rows: int, seed: int) -> None:
    for _ in range(5):
        K, N = integer(2, 70), integer(1, 70)
        x, w, norm, bias = 3 + normal(rows, K), normal(N, K), normal(K), normal(K)
        x64, *w64 = (each.double() for each in (x, norm, bias))
        normalized = F.layer_norm(x64, (K,), *w64, eps=0.1)
        variance, mean = torch.var_mean(x64, -1, correction=0, keepdim=True)
        size = (x64.abs() + mean.abs()) / (variance + 0.1).sqrt() * w64[0].abs() + w64[1].abs()
        assert_sums_near("y", dense.normalized_linear(x, 0.1, norm, bias, w), normalized, w, size=size)


@pytest.mark.parametrize("rows", ROWS)
def test_residual_feedforward(rows: int, seed: int) -> None:
    for _ in range(5):
        d, ff = integer(2, 70), integer(1, 70)
        shapes = ((rows, d), (rows, d), (d, d), (d,), (d,), (d,), (ff, d), (ff,), (d, ff), (d,))
        inputs = [normal(*shape) for shape in shapes]
        x, y, w0, b0, norm, bias, w1, b1, w2, b2 = (each.double() for each in inputs)
        z = x + y @ w0.T + b0
        want = z + F.linear(F.linear(F.layer_norm(z, (d,), norm, bias, 0.1), w1, b1).relu(), w2, b2)
        assert_near("z", dense.residual_feedforward(*inputs[:2], 0.1, *inputs[2:]), want, 1e-5)


@pytest.mark.parametrize("rows", ROWS)
def test_core_input(rows: int, seed: int) -> None:
    for with_norm in (True, False):
        K, N = integer(1, 70), integer(2, 70)
        x, w, b, reward = normal(rows, K), normal(N, K), normal(N), 3 * normal(rows)
        norm = [normal(N), normal(N)] if with_norm else [None, None]
        product = F.linear(x.double(), w.double(), b.double())
        want, kept = product, torch.full((rows, N), torch.nan)
        if with_norm:
            want = F.layer_norm(product, (N,), *(each.double() for each in norm), eps=0.1)
        want = torch.cat((want.relu(), reward.double().clamp(-0.7, 0.7).unsqueeze(1)), 1)
        assert reward.abs().max() > 0.7 or rows < 3
        for room in (kept, None):
            assert_near("y", dense.core_input(x, [w, b], norm, 0.1, reward, 0.7, room), want, 1e-5)
        assert_sums_near("kept", kept, x, w, b)


@pytest.mark.parametrize("rows", ROWS)
def test_heads(rows: int, seed: int) -> None:
    for A in (1, 2, 5, 18):
        K = integer(1, 70)
        x, policy, value = normal(rows, K), [normal(A, K), normal(A)], [normal(1, K), normal(1)]
        race = torch.empty(rows, A).exponential_()
        logits = F.linear(x.double(), *(each.double() for each in policy))
        for draws, scores in ((race, logits.softmax(-1) / race), (None, logits)):
            actions, *got = dense.heads(x, policy, value, draws)
            best, taken = scores.amax(-1), scores.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
            assert actions.dtype is torch.int64 and (best - taken <= 1e-5 * (1 + best.abs())).all()
            assert_sums_near("logits", got[0], x, *policy)
            assert_sums_near("values", got[1].unsqueeze(-1), x, *value)


def test_an_action_is_one_of_them_whatever_the_logits(seed: int) -> None:
    x, value = torch.ones(3, 1), [normal(1, 1), normal(1)]
    for bad, best in ((torch.nan, 0), (torch.inf, 1), (-torch.inf, 0)):
        policy = [torch.tensor([[0.0], [bad], [-1.0], [-2.0]]), torch.zeros(4)]
        actions, logits, _ = dense.heads(x, policy, value, None)
        assert actions.tolist() == [best] * 3 and not logits[:, 1].isfinite().any()
        actions, *_ = dense.heads(x, policy, value, torch.ones(3, 4))
        assert actions.min() >= 0 and actions.max() < 4


@pytest.mark.parametrize("rows", ROWS)
def test_normalized_elu(rows: int, seed: int) -> None:
    for size in (1, 7, 16, 32, 33):
        wide = 30 * normal(2, rows, size + 3)
        for x in (wide, wide[..., 2 : 2 + size], wide[..., :1], wide.mT, wide[0].mT, wide[:, ::2]):
            positive = torch.where(x > 0, x.double() + 1, x.double().exp())
            want = positive / (positive.sum(-1, keepdim=True) + 0.01)
            assert_near("y", dense.normalized_elu(x, 0.01), want, 1e-6)


def test_rows_are_independent_and_nan_stays(seed: int) -> None:
    x, w, b = normal(19, 5), normal(6, 5), normal(6)
    want = dense.linear(x, w, b, relu=True)
    x[7, 2] = torch.nan
    got = dense.linear(x, w, b, relu=True)
    assert got[7].isnan().all()
    assert torch.equal(got[torch.arange(19) != 7], want[torch.arange(19) != 7])


def test_threads_and_layout_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(130, 128), normal(140, 128)
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results += [dense.linear(x, w), dense.linear(x.T.contiguous().T, w)]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_what_is_not_taken(seed: int) -> None:
    x, w = normal(2, 3), normal(4, 3)
    assert dense.takes(x, [w, None])
    too_many = normal(dense.MAX_WIDTH + 1, 3)  # they would not fit the stack
    cases = [(x.double(), [w]), (x, [w.double()]), (x, [w.T]), (x.to("meta"), [w]), (x, [w, too_many])]
    for other, weights in [*cases, (too_many.T.contiguous(), [])]:
        assert not dense.takes(other, weights)
    with torch.autocast("cpu", torch.bfloat16):
        assert not dense.takes(x, [w])
    with torch.enable_grad():
        assert not dense.takes(x, [w])
    with pytest.raises(ValueError, match=r"^linear: x is \[2, 3\]; give rows of 5$"):
        dense.linear(x, normal(4, 5))


def test_a_changed_layer_is_not_passed_over(seed: int) -> None:
    """A hook, or a module in another's place, takes effect when actors step, too."""
    core = make_core("rdn", 5, hidden_size=8, num_layers=1, num_heads=2, ff_size=6)
    x, reset = normal(3, 5), torch.zeros(3, dtype=torch.bool)
    before, _ = core.step(x, core.initial_state(3), reset)
    for module in (core.input_proj, core.layers[0].norm, core.layers[0].ff[0]):
        hook = module.register_forward_hook(lambda module, given, result: result + 1)
        assert not torch.allclose(core.step(x, core.initial_state(3), reset)[0], before)
        hook.remove()
    core.layers[0].ff[1] = torch.nn.GELU()
    assert not torch.allclose(core.step(x, core.initial_state(3), reset)[0], before)


OTHERS: dict[str, tuple[str, dict[str, object]]] = {
    "root2": ("delta_net", {"feature_map": "root2", "normalise": "none"}),
    "unit": ("delta_net", {"feature_map": "unit", "normalise": "none", "beta_max": 2}),
    "softmax": ("linear_transformer", {"feature_map": "softmax", "normalise": "none"}),
    "elu": ("gated_delta_net", {"feature_map": "elu", "normalise": "sum", "decay_temperature": 3.0}),
}
"""cores with options, by a name of their own"""
FAST_WEIGHTS = (
    *("linear_transformer", "delta_net", "delta_rnn", "rdn"),
    *("gated_linear_attention", "gated_delta_net", "momentum_delta_net", *OTHERS),
)


def made(name: str, **options: object) -> Any:
    """Make a core whose every weight matters: biases and norms are not at their first values."""
    name, more = OTHERS.get(name, (name, {}))
    core = make_core(name, integer(1, 40), hidden_size=24, num_heads=3, ff_size=7, **options, **more)
    for parameter in core.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return core


def arguments(core: Any, rows: int) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    state = tuple(torch.randn_like(part) for part in core.initial_state(rows))
    return torch.randn(rows, core.input_size), state, torch.rand(rows) < 0.3


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("name", FAST_WEIGHTS)
def test_a_step_in_one_call_is_the_unroll_in_float64(
    name: str, rows: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = made(name, num_layers=3)
    x, state, reset = arguments(core, rows)
    before = [part.clone() for part in state]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    y, after = core._step_in_c(x, state, reset)
    assert all(map(torch.equal, state, before))
    doubles = tuple(part.double() for part in state)
    want, want_after = core.double().unroll(x.double().unsqueeze(0), doubles, reset.unsqueeze(0))
    assert_near("y", y, want[0], 1e-5)
    for got, expected in zip(after, want_after, strict=True):
        assert_near("state", got, expected, 1e-5)
        assert got.transpose(0, 1).is_contiguous()  # as the next step needs it


def test_a_step_in_one_call_overflows_no_softmax(seed: int) -> None:
    core = made("delta_rnn", num_layers=1)
    core.layers[0].memory.slow_net.weight.mul_(300)  # logits of some hundreds
    x, state, reset = arguments(core, 17)
    y, _ = core._step_in_c(x, state, reset)
    want, _ = core.double().unroll(
        x.double().unsqueeze(0), tuple(s.double() for s in state), reset.unsqueeze(0)
    )
    assert_near("y", y, want[0], 1e-3)


@pytest.mark.parametrize("name", FAST_WEIGHTS)
def test_a_step_in_one_call_keeps_rows_apart(name: str, seed: int) -> None:
    core = made(name)
    x, state, reset = arguments(core, 19)
    want, _ = core._step_in_c(x, state, reset)
    x[7, 0] = torch.nan
    got, _ = core._step_in_c(x, state, reset)
    assert got[7].isnan().all()
    assert torch.equal(got[torch.arange(19) != 7], want[torch.arange(19) != 7])


def test_what_is_not_stepped_in_one_call(seed: int) -> None:
    core = made("rdn")
    x, state, reset = arguments(core, 3)
    assert core._step_in_c(x, state, reset) is not None
    W, y = state
    for wrong in (
        (x[:, 1:] if core.input_size > 1 else x.repeat(1, 2), state, reset),
        (x.double(), state, reset),
        (x, (W, y[:, :1]), reset),
        (x, (W.double(), y), reset),
        (x, (W.contiguous(), y), reset),
        (x, state, reset[:2]),
        (x, state, reset.int()),
        (x[:0], tuple(part[:0] for part in state), reset[:0]),
    ):
        assert core._step_in_c(*wrong) is None
    with pytest.raises(ValueError, match=r"reset is \[1, 2\]"):
        core.step(x, state, reset[:2])
    layer = core.layers[1]
    for module in (layer, layer.memory, layer.memory.slow_net, layer.ff[1]):
        hook = module.register_forward_hook(lambda *_: None)
        assert core._step_in_c(x, state, reset) is None
        hook.remove()
    with torch.enable_grad():
        assert core._step_in_c(x, state, reset) is None
    for name, module in (
        ("norm", torch.nn.LayerNorm(24, elementwise_affine=False)),
        ("norm", torch.nn.LayerNorm(24, eps=0.1)),
        ("ff", torch.nn.Sequential(torch.nn.Linear(24, 9), torch.nn.ReLU(), torch.nn.Linear(9, 24))),
        ("memory", make_core("rdn", 5, hidden_size=24, num_heads=2).layers[0].memory),
        ("memory", made("delta_net", num_layers=1).layers[0].memory),
        ("out", torch.nn.Linear(24, 25)),
    ):
        kept, layer._modules[name] = layer._modules[name], module
        assert core._step_in_c(x, state, reset) is None, module
        layer._modules[name] = kept
    for each in core.layers:
        each.norm.eps = 0.1  # C has one for both
    assert core._step_in_c(x, state, reset) is None
    alike = made("hybrid", layers="rdn,rdn")  # whose state is not stacked
    assert alike.new_kept(5, 3) is None


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_lstm_and_gru_step_as_their_unrolls_in_float64(
    name: str, rows: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most rows have so many units that several threads share them."""
    core = make_core(name, integer(1, 40), hidden_size=integer(100, 120) if rows == 40 else integer(1, 40))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x, state, reset = arguments(core, rows)
    for taken in (state, tuple(part.repeat(1, 2, 1)[:, 1:] for part in state)):
        y, after = core.step(x, taken, reset)
        doubles = tuple(part.double() for part in state)
        want, want_after = (
            copy.deepcopy(core).double().unroll(x.double().unsqueeze(0), doubles, reset.unsqueeze(0))
        )
        assert_near("y", y, want[0], 1e-5)
        for got, expected in zip(after, want_after, strict=True):
            assert_near("state", got, expected, 1e-5)
    with pytest.raises(ValueError, match=r"reset is \["):
        core.step(x, state, reset[:0])


def test_a_memory_of_another_unroll_is_not_passed_over(seed: int) -> None:
    core = made("rdn")
    x, state, reset = arguments(core, 3)

    class Still(type(core.layers[0].memory)):  # type: ignore[misc]
        def unroll(self, parts: Any, state: Any, reset: Any) -> Any:
            y, _ = super().unroll(parts, state, reset)
            return y, state

    core.layers[1].memory.__class__ = Still
    _, (W, _) = core.step(x, state, reset)
    assert torch.equal(W[:, 1], state[0][:, 1]) and not torch.equal(W[:, 0], state[0][:, 0])


@pytest.mark.parametrize("name", ["gated_delta_net", "gated_linear_attention"])
def test_a_root_of_what_is_next_to_nothing(name: str, seed: int) -> None:
    """A sigmoid below 1e-38 is still a decay of some size, for an actor as for a learner."""
    core = make_core(name, 6, hidden_size=12, num_heads=2, num_layers=1, ff_size=8, decay_temperature=100.0)
    core.layers[0].memory.slow_net.weight.mul_(200)
    x, reset = normal(1, 9, 6), torch.zeros(1, 9, dtype=torch.bool)
    state = tuple(torch.randn_like(part) for part in core.initial_state(9))
    (W,) = core._step_in_c(x[0], state, reset[0])[1]
    assert_near("W", W, core.unroll(x, state, reset)[1][0], 1e-4)
    logits = core.layers[0].memory.slow_net(core.layers[0].norm(core.input_proj(x)))
    assert (logits.abs() > 87).any()
