"""Dense layers in C against their definitions in float64, for every number of rows."""

from __future__ import annotations

import pytest
import torch
from fastweight_helpers import assert_near, integer
from torch import Tensor
from torch.nn import functional as F

from deltabeast.kernels.native import compiling, dense

ROWS = (1, 3, 8, 9, 16, 17, 32, 33)
pytestmark = pytest.mark.skipif(
    compiling.unsupported_reason("dense.c", "LANES=8") is not None, reason="no C compiler builds dense.c"
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
        exp_noise = torch.empty(rows, A).exponential_()
        logits = F.linear(x.double(), *(each.double() for each in policy))
        for draws, scores in ((exp_noise, logits.softmax(-1) / exp_noise), (None, logits)):
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
    assert dense.is_supported(x, [w, None])
    too_many = normal(dense.MAX_WIDTH + 1, 3)  # they would not fit the stack
    cases = [(x.double(), [w]), (x, [w.double()]), (x, [w.T]), (x.to("meta"), [w]), (x, [w, too_many])]
    for other, weights in [*cases, (too_many.T.contiguous(), [])]:
        assert not dense.is_supported(other, weights)
    with torch.autocast("cpu", torch.bfloat16):
        assert not dense.is_supported(x, [w])
    with torch.enable_grad():
        assert not dense.is_supported(x, [w])
    with pytest.raises(ValueError, match=r"^linear: x is \[2, 3\]; give rows of 5$"):
        dense.linear(x, normal(4, 5))
