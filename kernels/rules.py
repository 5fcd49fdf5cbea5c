"""The built-in rules: a record each, and the public functions that call them."""

from __future__ import annotations

import torch
from torch import Tensor

from . import operators, reference, triton
from .dispatch import Fused, Rule
from .native import lstm as native_lstm
from .native import rules as native
from .pytorch import chunked, stepwise
from .shapes import Shapes


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


SUM_RULE = Rule(
    "sum_rule",
    Shapes(q="T B H K", k="T B H K", v="T B H V", W="B H V K"),
    reference.sum_rule,
    chunked=chunked.sum_rule,
    step=stepwise.sum_rule,
    native=Fused(operators.sum_rule, native.problem),
    triton=Fused(operators.sum_rule, triton.problem),
    maps={"q": _softmax, "k": _softmax},
)

DELTA_RULE = Rule(
    "delta_rule",
    Shapes(q="T B H K", k="T B H K", v="T B H V", beta="T B H", W="B H V K"),
    reference.delta_rule,
    chunked=chunked.delta_rule,
    step=stepwise.delta_rule,
    native=Fused(operators.delta_rule, native.problem),
    triton=Fused(operators.delta_rule, triton.problem),
    maps={"q": _softmax, "k": _softmax, "beta": torch.sigmoid},
)

DELTA_RNN = Rule(
    "delta_rnn",
    Shapes(z="T B H V", k="T B H V", v="T B H V", beta="T B H", R="B H V V", y0="B H V"),
    reference.delta_rnn,
    chunked=chunked.delta_rnn,
    step=stepwise.delta_rnn,
    native=Fused(operators.delta_rnn, native.problem),
    triton=Fused(operators.delta_rnn, triton.problem),
    maps={"k": _softmax, "beta": torch.sigmoid},
)

RECURRENT_DELTA = Rule(
    "recurrent_delta",
    Shapes(
        q="T B H K",
        k="T B H K",
        v="T B H V",
        beta="T B H",
        Rq="H V K",
        Rk="H V K",
        Rv="H V V",
        rb="H V",
        W="B H V K",
        y0="B H V",
    ),
    reference.recurrent_delta,
    chunked=stepwise.recurrent_delta,
    native=Fused(operators.recurrent_delta, native.problem),
    triton=Fused(operators.recurrent_delta, triton.problem),
)

LSTM = Rule(
    "lstm",
    Shapes(gates="T B 4N", weight="4N N", h0="B N", c0="B N"),
    reference.lstm,
    chunked=stepwise.lstm,
    native=Fused(native_lstm.lstm, native_lstm.problem),
    triton=Fused(triton.lstm_operator, triton.lstm_problem),
)

RULES = {rule.name: rule for rule in (SUM_RULE, DELTA_RULE, DELTA_RNN, RECURRENT_DELTA, LSTM)}


def backends(device: torch.device, head_size: int) -> dict[str, tuple[str, ...]]:
    """Return, by rule, the backends that compute it on a device in float32, `auto` left out."""
    return {name: rule.backends_on(device, head_size) for name, rule in RULES.items()}


def sum_rule(
    q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Write `v_t k_tᵀ` into the fast weights, then read them with `q_t`.

    Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight Programmers", section 3.1.

    Args:
        q, k: queries and keys `[T, B, H, K]`, feature maps already applied.
        v: values `[T, B, H, V]`.
        W: fast weights before the first step `[B, H, V, K]`.
        reset: bool `[T, B]`; W of row b is zeroed before step t reads it.
        backend: one of `BACKENDS`.

    Returns:
        y `[T, B, H, V]` and W after step T. Gradients reach every float argument.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return SUM_RULE(q, k, v, W, reset, backend=backend)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Move what the fast weights hold under `k_t` towards `v_t` by the share `beta_t`, then read with `q_t`.

    Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight Programmers", section 4.2.
    Arguments as in `sum_rule`, and the write strengths beta `[T, B, H]`, after the sigmoid.

    Returns:
        y `[T, B, H, V]` and W after step T.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return DELTA_RULE(q, k, v, beta, W, reset, backend=backend)


def delta_rnn(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `y_t = z_t + R_t softmax(y_{t-1})`, where R learns by the delta rule from k, v and beta.

    Irie et al. 2021, "Going Beyond Linear Transformers with Recurrent Fast Weight Programmers", equation 12.

    Args:
        z: what the feedforward fast weights read out `[T, B, H, V]`.
        k, v, beta: what is written into R, `[T, B, H, V]` twice and `[T, B, H]` in (0, 1), maps applied.
        R: recurrent fast weights before the first step `[B, H, V, V]`.
        y0: the output before the first step `[B, H, V]`.
        reset: bool `[T, B]`; R and y of row b are zeroed before step t reads them.
        backend: one of `BACKENDS`.

    Returns:
        y `[T, B, H, V]`, R after step T and y_T, which is the last row of y.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return DELTA_RNN(z, k, v, beta, R, y0, reset, backend=backend)


def recurrent_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the delta rule with queries, keys, values and write strengths that depend on its last output.

    Irie et al. 2021, "Going Beyond Linear Transformers with Recurrent Fast Weight Programmers", equations
    15-18, with the softmax on q and k and the recurrent matrices per head of the released code:
    `g = tanh(y_{t-1})`, `q = softmax(q_t + g Rq)`, `k = softmax(k_t + g Rk)`, `v = v_t + g Rv`,
    `β = sigmoid(beta_t + g·rb)`, then the delta rule with q, k, v, β.

    Args:
        q, k, v, beta: `[T, B, H, K]` twice, `[T, B, H, V]`, `[T, B, H]`, raw: nothing applied yet.
        Rq, Rk, Rv, rb: slow recurrent weights `[H, V, K]` twice, `[H, V, V]`, `[H, V]`.
        W: fast weights before the first step `[B, H, V, K]`.
        y0: the output before the first step `[B, H, V]`.
        reset: bool `[T, B]`; W and y of row b are zeroed before step t reads them.
        backend: one of `BACKENDS`.

    Returns:
        y `[T, B, H, V]`, W after step T and y_T, which is the last row of y.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return RECURRENT_DELTA(q, k, v, beta, Rq, Rk, Rv, rb, W, y0, reset, backend=backend)


def lstm(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, reset: Tensor, backend: str = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM layer from step to step: `i, f, g, o = gates_t + weight h_{t-1}`, the input's share given.

    Hochreiter & Schmidhuber 1997, "Long Short-Term Memory", with the forget gate of Gers et al. 2000:
    `c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)`, `h_t = sigmoid(o) tanh(c_t)`.

    Args:
        gates: what the input contributes to i, f, g, o, in this order, bias included `[T, B, 4 N]`.
        weight: recurrent weights `[4 N, N]`.
        h0, c0: output and cell before the first step `[B, N]`.
        reset: bool `[T, B]`; h and c of row b are zeroed before step t reads them.
        backend: one of `BACKENDS`.

    Returns:
        h `[T, B, N]`, h_T, which is the last row of h, and c_T. Gradients reach every float argument.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return LSTM(gates, weight, h0, c0, reset, backend=backend)
