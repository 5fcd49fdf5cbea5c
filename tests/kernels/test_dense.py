"""Dense layers in C against their definitions in float64, for every number of rows."""

from __future__ import annotations

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


@pytest.mark.parametrize("rows", ROWS)
def test_linear(rows: int, seed: int) -> None:
    for _ in range(5):
        K, N = integer(1, 70), integer(1, 70)
        x, w, b = normal(rows, K), normal(N, K), normal(N)
        want = F.linear(x.double(), w.double(), b.double())
        assert_near("product", dense.linear(x, w), want - b, 1e-6)
        assert_near("sum", dense.linear(x, w, b), want, 1e-6)
        assert_near("rectified", dense.linear(x, w, b, relu=True), want.relu(), 1e-6)


@pytest.mark.parametrize("rows", ROWS)
def test_normalized_linear(rows: int, seed: int) -> None:
    for _ in range(5):
        K, N = integer(2, 70), integer(1, 70)
        x, w, norm, bias = 3 + normal(rows, K), normal(N, K), normal(K), normal(K)
        x64, *w64 = (each.double() for each in (x, norm, bias))
        want = F.linear(F.layer_norm(x64, (K,), *w64, eps=0.1), w.double())
        assert_near("y", dense.normalized_linear(x, 0.1, norm, bias, w), want, 1e-5)


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
def test_normalized_elu(rows: int, seed: int) -> None:
    for size in (1, 7, 16, 32, 33):
        wide = 30 * normal(2, rows, size + 3)
        for x in (wide, wide[..., 2 : 2 + size], wide[..., :1], wide.mT, wide[:, ::2]):
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
