"""The reference against numbers worked out by hand, and its gradients against finite differences."""

from __future__ import annotations

import math

import torch
from fastweight_helpers import make_reset
from torch import Tensor

from deltabeast.kernels import (
    delta_lstm,
    delta_rnn,
    delta_rule,
    gated_delta,
    gated_sum,
    generalised_delta,
    gru,
    momentum_delta,
    recurrent_delta,
    sum_rule,
)


def column(*values: float) -> Tensor:
    """Scalars over time as `[T, 1, 1, 1]`: one row, one head, width one."""
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)


def no_reset(steps: int) -> Tensor:
    return torch.zeros(steps, 1, dtype=torch.bool)


def test_sum_rule_by_hand() -> None:
    # W: 1 -> 1 + 2*3 = 7 -> 7 + 1*(-1) = 6; read with 1 and 2.
    W = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    y, W_T = sum_rule(column(1, 2), column(3, -1), column(2, 1), W, no_reset(2), backend="reference")
    assert y.flatten().tolist() == [7.0, 12.0]
    assert W_T.item() == 6.0


def test_sum_rule_orientation() -> None:
    # A value of two entries under a key of three: W is [value, key].
    q = torch.tensor([0.0, 1.0, 0.0]).view(1, 1, 1, 3)
    k = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3)
    v = torch.tensor([5.0, 7.0]).view(1, 1, 1, 2)
    y, W = sum_rule(q, k, v, torch.zeros(1, 1, 2, 3), no_reset(1), backend="reference")
    assert y.flatten().tolist() == [10.0, 14.0]
    assert W[0, 0].tolist() == [[5.0, 10.0, 15.0], [7.0, 14.0, 21.0]]


def test_delta_rule_by_hand() -> None:
    # W: 2 -> 2 + 0.5 (4 - 2) = 3 -> reset 0 -> 0 + 1 (5 - 0) 2 = 10; read with 1 and 3.
    W = torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)
    beta = torch.tensor([0.5, 1.0], dtype=torch.float64).view(2, 1, 1)
    reset = torch.tensor([[False], [True]])
    y, W_T = delta_rule(column(1, 3), column(1, 2), column(4, 5), beta, W, reset, backend="reference")
    assert y.flatten().tolist() == [3.0, 30.0]
    assert W_T.item() == 10.0


def test_gated_sum_by_hand() -> None:
    # Each row of W has a decay of its own: (2, 4) -> (1, 4) + (3, 5) * 2 = (7, 14) -> reset, (0, 0) + (1, 1).
    W = torch.tensor([[2.0], [4.0]], dtype=torch.float64).view(1, 1, 2, 1)
    v = torch.tensor([[3.0, 5.0], [1.0, 1.0]], dtype=torch.float64).view(2, 1, 1, 2)
    decay = torch.tensor([[0.5, 1.0], [0.5, 0.5]], dtype=torch.float64).view(2, 1, 1, 2)
    reset = torch.tensor([[False], [True]])
    y, W_T = gated_sum(column(1, 3), column(2, 1), v, decay, W, reset, backend="reference")
    assert y.flatten().tolist() == [7.0, 14.0, 3.0, 3.0]
    assert W_T.flatten().tolist() == [1.0, 1.0]


def test_generalised_delta_by_hand() -> None:
    # W (4, 2): decays to (2, 2), reads 2 - 2 = 0 under (1, -1), so 3 is written whole under (1, 2): (5, 8).
    # Decays to (5, 4), reads 20 under (0, 5), so 21 - 20 is written under (0, 1): (5, 5). Read with (1, 2).
    W = torch.tensor([[4.0, 2.0]], dtype=torch.float64).view(1, 1, 1, 2)

    def twice(*rows: list[float]) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64).view(1, 1, 1, 2, -1)

    y, W_T = generalised_delta(
        torch.tensor([1.0, 2.0], dtype=torch.float64).view(1, 1, 1, 2),
        twice([1, 2], [0, 1]),
        twice([3], [21]),
        twice([1, -1], [0, 5]),
        twice([0.5, 1], [1, 0.5]),
        W,
        no_reset(1),
        backend="reference",
    )
    assert W_T.flatten().tolist() == [5.0, 5.0]
    assert y.item() == 15.0


def test_gated_delta_by_hand() -> None:
    # W: 4 -> decays to 2 -> 2 + 0.5 (4 - 2) = 3 -> decays to 0.75 -> 0.75 + 1 (5 - 1.5) 2 = 7.75.
    W = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64)
    beta, decay = (torch.tensor(x, dtype=torch.float64).view(2, 1, 1) for x in ([0.5, 1.0], [0.5, 0.25]))
    y, W_T = gated_delta(
        column(1, 3), column(1, 2), column(4, 5), beta, decay, W, no_reset(2), backend="reference"
    )
    assert y.flatten().tolist() == [3.0, 23.25]
    assert W_T.item() == 7.75


def test_momentum_delta_by_hand() -> None:
    # C: 2 -> 0.5 * 2 + 0.5 * 4 = 3 -> 0.25 * 3 + 1 * 5 * 2 = 10.75.
    # W: 4 -> 0.5 * 4 (1 - 0.5) + 3 = 4 -> 4 (1 - 4) + 10.75 = -1.25. The second key is 2, its decay 1.
    W, C = (torch.full((1, 1, 1, 1), x, dtype=torch.float64) for x in (4.0, 2.0))
    rates = ([0.5, 1.0], [0.5, 1.0], [0.5, 0.25])
    beta, decay, momentum = (torch.tensor(x, dtype=torch.float64).view(2, 1, 1) for x in rates)
    inputs = (column(1, 3), column(1, 2), column(4, 5), beta, decay, momentum, W, C)
    y, W_T, C_T = momentum_delta(*inputs, no_reset(2), backend="reference")
    assert y.flatten().tolist() == [4.0, -3.75]
    assert (W_T.item(), C_T.item()) == (-1.25, 10.75)
    *_, C_T = momentum_delta(*inputs, ~no_reset(2), backend="reference")
    assert C_T.item() == 10.0


def test_delta_rnn_by_hand() -> None:
    # Width two: softmax of y is read after R's write; a reset makes it uniform.
    R = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64).view(1, 1, 2, 2)
    k = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 2)
    v = torch.tensor([5.0, 7.0], dtype=torch.float64).view(1, 1, 1, 2)
    z = torch.tensor([0.1, 0.2], dtype=torch.float64).view(1, 1, 1, 2)
    beta = torch.full((1, 1, 1), 0.5, dtype=torch.float64)
    y0 = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64).view(1, 1, 2)  # softmax: 1/4, 3/4
    y, R_T, y_T = delta_rnn(z, k, v, beta, R, y0, no_reset(1), backend="reference")
    # The write halves the way of column 0 from (1, 3) to (5, 7): R = [[3, 2], [5, 4]].
    assert R_T[0, 0].tolist() == [[3.0, 2.0], [5.0, 4.0]]
    torch.testing.assert_close(y.flatten(), torch.tensor([0.1 + 2.25, 0.2 + 4.25], dtype=torch.float64))
    assert torch.equal(y[0], y_T)
    y, R_T, _ = delta_rnn(z, k, v, beta, R, y0, ~no_reset(1), backend="reference")
    assert R_T[0, 0].tolist() == [[2.5, 0.0], [3.5, 0.0]]
    torch.testing.assert_close(y.flatten(), torch.tensor([0.1 + 1.25, 0.2 + 1.75], dtype=torch.float64))


def test_delta_lstm_by_hand() -> None:
    # Width one: softmax is 1, so but for A the read is R itself; z is i, u, o.
    z = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64).view(1, 1, 3, 1)
    k = torch.ones(1, 1, 3, 1, dtype=torch.float64)
    v = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64).view(1, 1, 3, 1)
    beta = torch.full((1, 1, 3), 0.5, dtype=torch.float64)
    R = torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64).view(1, 3, 1, 1)
    y0, c0 = (torch.full((1, 1, 1), x, dtype=torch.float64) for x in (0.25, 0.7))
    after = [0.6, 1.2, -0.2]

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    for variant in "ABCD":
        read = 0.25 if variant == "A" else 1.0
        i, u, o = (a + b * read for a, b in zip((0.3, -0.2, 0.5), after, strict=True))
        c = sigmoid(i) * (u if variant == "D" else sigmoid(u)) + (1 - sigmoid(i)) * 0.7
        want = {"A": 1.0, "C": c * sigmoid(o) - 0.2}.get(variant, c * sigmoid(o))
        y, R_T, y_T, c_T = delta_lstm(z, k, v, beta, R, y0, c0, no_reset(1), variant, backend="reference")
        torch.testing.assert_close([y.item(), y_T.item(), c_T.item()], [want, want, c])
        torch.testing.assert_close(R_T.flatten().tolist(), after)
        *_, c_T = delta_lstm(z, k, v, beta, R, y0, c0, ~no_reset(1), variant, backend="reference")
        read = 0.0 if variant == "A" else 1.0
        i, u = 0.3 + 0.5 * read, -0.2 + 1.0 * read
        torch.testing.assert_close(c_T.item(), sigmoid(i) * (u if variant == "D" else sigmoid(u)))


def test_recurrent_delta_by_hand() -> None:
    # Width one: softmax is 1, so y = W = W + sigmoid(b + g rb) (v + g Rv - W), g = tanh(last y).
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    beta = torch.tensor([0.3, -0.2], dtype=torch.float64).view(2, 1, 1)
    y, W, y_T = recurrent_delta(
        column(9, 9),
        column(9, 9),
        column(2, -1),
        beta,
        one,
        one,
        0.5 * one,
        2 * one[0],
        2 * one[None],
        0.7 * one,
        no_reset(2),
        backend="reference",
    )
    W_want, y_want, want = 2.0, 0.7, []
    for v_t, beta_t in ((2, 0.3), (-1, -0.2)):
        g = math.tanh(y_want)
        strength = 1 / (1 + math.exp(-(beta_t + 2 * g)))
        W_want += strength * (v_t + 0.5 * g - W_want)
        y_want = W_want
        want.append(y_want)
    torch.testing.assert_close(y.flatten(), torch.tensor(want, dtype=torch.float64))
    torch.testing.assert_close(W.item(), want[-1])
    assert torch.equal(y[-1], y_T)


def test_gru_is_torch_gru(seed: int) -> None:
    layer = torch.nn.GRU(3, 5).double()
    x, h0 = torch.randn(7, 2, 3, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)
    want, last = layer(x, h0)
    gates = x @ layer.weight_ih_l0.mT + layer.bias_ih_l0
    never = torch.zeros(7, 2, dtype=torch.bool)
    y, h = gru(gates, layer.weight_hh_l0, layer.bias_hh_l0, h0[0], never, backend="reference")
    torch.testing.assert_close((y, h), (want, last[0]))


def test_recurrent_weights_multiply_row_vectors() -> None:
    # g = (tanh 1, 0): only row 0 of Rv may reach v.
    zeros = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    square = torch.zeros(1, 2, 2, dtype=torch.float64)
    Rv = torch.tensor([[1.0, 10.0], [100.0, 1000.0]], dtype=torch.float64).view(1, 2, 2)
    y0 = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 1, 2)
    strong = torch.full((1, 1, 1), 50.0, dtype=torch.float64)
    W0 = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    y, *_ = recurrent_delta(
        zeros,
        zeros,
        zeros,
        strong,
        square,
        square,
        Rv,
        square[0, :1],
        W0,
        y0,
        no_reset(1),
        backend="reference",
    )
    # q = k = (1/2, 1/2), so the read returns half of what was written.
    torch.testing.assert_close(y.flatten(), math.tanh(1) * torch.tensor([0.5, 5.0], dtype=torch.float64))


def test_gradients_by_finite_differences(seed: int) -> None:
    T, B, H, K, V = 3, 2, 2, 2, 3
    reset = make_reset("random", T, B)
    shapes = {"q": (T, B, H, K), "k": (T, B, H, K), "v": (T, B, H, V), "beta": (T, B, H), "W": (B, H, V, K)}
    x = {n: torch.randn(s, dtype=torch.float64, requires_grad=True) for n, s in shapes.items()}
    q, k, v, beta, W = x.values()
    slow = [torch.randn(H, V, n, dtype=torch.float64, requires_grad=True) for n in (K, K, V)]
    rb, y0 = (torch.randn(n, H, V, dtype=torch.float64, requires_grad=True) for n in (1, B))
    R = torch.randn(B, H, V, V, dtype=torch.float64, requires_grad=True)
    z, kr = (torch.randn(T, B, H, V, dtype=torch.float64, requires_grad=True) for _ in range(2))
    decays = torch.rand(T, B, H, V, dtype=torch.float64, requires_grad=True)
    decay, momentum = torch.rand(2, T, B, H, dtype=torch.float64).requires_grad_()
    C = torch.randn(B, H, V, K, dtype=torch.float64, requires_grad=True)
    check = torch.autograd.gradcheck
    assert check(lambda *a: sum_rule(*a, reset, "reference"), (q, k, v, W))
    assert check(lambda *a: delta_rule(*a, reset, "reference"), (q, k, v, beta, W))
    assert check(lambda *a: gated_sum(*a, reset, "reference"), (q, k, v, decays, W))
    assert check(lambda *a: gated_delta(*a, reset, "reference"), (q, k, v, beta, decay, W))
    several = [torch.randn(T, B, H, 2, n, dtype=torch.float64, requires_grad=True) for n in (K, V, K, K)]
    assert check(lambda *a: generalised_delta(*a, reset, "reference"), (q, *several, W))
    inputs = (q, k, v, beta, decay, momentum, W, C)
    assert check(lambda *a: momentum_delta(*a, reset, "reference"), inputs)
    # of one head, which has three memories
    three = [torch.randn(T, B, 3, V, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    betas, R3 = torch.rand(T, B, 3).double(), torch.randn(B, 3, V, V, dtype=torch.float64)
    ends = [torch.randn(B, 1, V, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for variant in "ABCD":
        inputs = (*three, betas.requires_grad_(), R3.requires_grad_(), *ends)
        assert check(lambda *a, x=variant: delta_lstm(*a, reset, x, "reference"), inputs)
    N = 3
    gates, weight = (torch.randn(*s, 3 * N, dtype=torch.float64).requires_grad_() for s in ((T, B), (N,)))
    bias, h0 = (torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((3 * N,), (B, N)))
    assert check(lambda g, w, *a: gru(g, w.mT, *a, reset, "reference"), (gates, weight, bias, h0))
    assert check(lambda *a: delta_rnn(*a, reset, "reference"), (z, kr, v, beta, R, y0))
    assert check(
        lambda q, k, v, b, Rq, Rk, Rv, rb, W, y: recurrent_delta(
            q, k, v, b, Rq, Rk, Rv, rb[0], W, y, reset, "reference"
        ),
        (q, k, v, beta, *slow, rb, W, y0),
    )
