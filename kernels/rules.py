"""The built-in rules: a `Rule` object each, and the public functions that call them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import reference, signatures, triton
from .custom_ops import KernelSignature, RuleOperator
from .dispatch import Fused, Rule
from .native import attention as native_attention
from .native import gru as native_gru
from .native import lstm as native_lstm
from .native import rules as native
from .pytorch import attention as windowed
from .pytorch import chunked, gated, generalised, stepwise
from .pytorch.delta_lstm import delta_lstm as chunked_delta_lstm
from .pytorch.gru import gru as chunked_gru
from .shapes import Shapes


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _near_one(x: Tensor) -> Tensor:
    return x.sigmoid() ** (1 / 16)


def _fused(
    kernel: KernelSignature, name: str, shapes: Shapes, reference: Callable[..., Any], **more: Any
) -> Rule:
    """Return the `Rule` of a kernel in C and perhaps in Triton."""
    operator = RuleOperator(name, shapes, kernel)
    reason = partial(native.unsupported_reason, file=native.source(kernel.name))
    on_gpu = Fused(operator, triton.unsupported_reason) if kernel.name in triton.KERNEL_NAMES else None
    return Rule(name, shapes, reference, native=Fused(operator, reason), triton=on_gpu, **more)


SUM_RULE = _fused(
    signatures.SUM,
    "sum_rule",
    Shapes(q="T B H K", k="T B H K", v="T B H V", W="B H V K"),
    reference.sum_rule,
    chunked=chunked.sum_rule,
    step=stepwise.sum_rule,
    maps={"q": _softmax, "k": _softmax},
)

DELTA_RULE = _fused(
    signatures.DELTA,
    "delta_rule",
    Shapes(q="T B H K", k="T B H K", v="T B H V", beta="T B H", W="B H V K"),
    reference.delta_rule,
    chunked=chunked.delta_rule,
    step=stepwise.delta_rule,
    maps={"q": _softmax, "k": _softmax, "beta": torch.sigmoid},
)

GATED_SUM = _fused(
    signatures.GATED_SUM,
    "gated_sum",
    Shapes(q="T B H K", k="T B H K", v="T B H V", decay="T B H V", W="B H V K"),
    reference.gated_sum,
    chunked=gated.gated_sum,
    maps={"q": _softmax, "k": _softmax, "decay": _near_one},
)

GATED_DELTA = _fused(
    signatures.GATED,
    "gated_delta",
    Shapes(q="T B H K", k="T B H K", v="T B H V", beta="T B H", decay="T B H", W="B H V K"),
    reference.gated_delta,
    chunked=gated.gated_delta,
    maps={"q": _softmax, "k": _softmax, "beta": torch.sigmoid, "decay": _near_one},
)

GENERALISED_DELTA = _fused(
    signatures.GENERALISED,
    "generalised_delta",
    Shapes(q="T B H K", k="T B H S K", u="T B H S V", e="T B H S K", decay="T B H S K", W="B H V K"),
    reference.generalised_delta,
    chunked=generalised.generalised_delta,
    maps={"q": _softmax, "k": _softmax, "e": _softmax, "decay": _near_one},
)

MOMENTUM_DELTA = _fused(
    signatures.MOMENTUM,
    "momentum_delta",
    Shapes(
        q="T B H K",
        k="T B H K",
        v="T B H V",
        beta="T B H",
        decay="T B H",
        momentum="T B H",
        W="B H V K",
        C="B H V K",
    ),
    reference.momentum_delta,
    chunked=gated.momentum_delta,
    maps={"q": _softmax, "k": _softmax, "decay": _near_one}
    | dict.fromkeys(("beta", "momentum"), torch.sigmoid),
)

_CACHE = {"keys": "B H M K", "values": "B H M V", "live": "B H M"}

ATTENTION = {
    normalise: Rule(
        "attention" if normalise else "exp_attention",
        Shapes(q="T B H K", k="T B H K", v="T B H V", decay="T B H", bias="T B H M", **_CACHE),
        partial(reference.attention, normalise),
        chunked=partial(windowed.attention, normalise),
        native=Fused(partial(native_attention.attention, normalise), native_attention.unsupported_reason),
        maps={"decay": _near_one, "live": torch.sigmoid},
    )
    for normalise in (True, False)
}


def _small_beta(x: Tensor) -> Tensor:
    return 0.02 * x.sigmoid()


@functools.cache
def deltaformer_rule(first: str, second: str) -> Rule:
    """Return the `Rule` of the DeltaFormer with these kernels, each one of `reference.KERNELS`."""
    return Rule(
        f"deltaformer_{first}_{second}",
        Shapes(
            q="T B H G K",
            k="T B H K",
            v="T B H V",
            w="T B H G K",
            mix="H G",
            alpha="T B H",
            beta="T B H",
            **_CACHE,
        ),
        partial(reference.deltaformer, first, second),
        chunked=partial(windowed.deltaformer, first, second),
        native=Fused(
            partial(native_attention.deltaformer, first, second), native_attention.unsupported_reason
        ),
        maps={"alpha": torch.sigmoid, "beta": _small_beta, "live": torch.sigmoid},
    )


DELTAFORMERS = tuple(
    deltaformer_rule(*kinds)
    for kinds in (("linear", "linear"), ("exp", "softmax"), ("softmax", "exp"), ("relu", "softmax"))
)

DELTA_RNN = _fused(
    signatures.DELTA_RNN,
    "delta_rnn",
    Shapes(z="T B H V", k="T B H V", v="T B H V", beta="T B H", R="B H V V", y0="B H V"),
    reference.delta_rnn,
    chunked=chunked.delta_rnn,
    step=stepwise.delta_rnn,
    maps={"k": _softmax, "beta": torch.sigmoid},
)

DELTA_LSTM = {
    variant: _fused(
        kernel,
        f"delta_lstm_{variant.lower()}",
        Shapes(
            z="T B 3H V",
            k="T B 3H V",
            v="T B 3H V",
            beta="T B 3H",
            R="B 3H V V",
            y0="B H V",
            c0="B H V",
        ),
        partial(reference.delta_lstm, variant),
        chunked=partial(chunked_delta_lstm, variant),
        maps={"k": _softmax, "beta": torch.sigmoid},
    )
    for variant, kernel in signatures.DELTA_LSTM.items()
}

RECURRENT_DELTA = _fused(
    signatures.RECURRENT_DELTA,
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
)

LSTM = Rule(
    "lstm",
    Shapes(gates="T B 4N", weight="4N N", h0="B N", c0="B N"),
    reference.lstm,
    chunked=stepwise.lstm,
    native=Fused(native_lstm.lstm, native_lstm.unsupported_reason),
    triton=Fused(triton.lstm_operator, partial(triton.unsupported_reason, any_width=True)),
)

GRU = Rule(
    "gru",
    Shapes(gates="T B 3N", weight="3N N", bias="3N", h0="B N"),
    reference.gru,
    chunked=chunked_gru,
    native=Fused(native_gru.gru, native_lstm.unsupported_reason),
    triton=Fused(triton.gru_operator, partial(triton.unsupported_reason, any_width=True)),
)

_RULES = (
    SUM_RULE,
    DELTA_RULE,
    GATED_SUM,
    GATED_DELTA,
    GENERALISED_DELTA,
    MOMENTUM_DELTA,
    DELTA_RNN,
    *DELTA_LSTM.values(),
    RECURRENT_DELTA,
    *ATTENTION.values(),
    *DELTAFORMERS,
    LSTM,
    GRU,
)
RULES = {rule.name: rule for rule in _RULES}


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


def gated_sum(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, W: Tensor, reset: Tensor, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Let the fast weights decay, row by row, before a write: `W_t = diag(λ_t) W_{t-1} + v_t k_tᵀ`.

    Gated linear attention in the form of Zhong et al. 2025, "Understanding Transformer from the Perspective
    of Associative Memory", Table 2: the gate has a number for each row of values, not for each channel of
    keys as in Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training". One
    gate for all rows, `expand`ed, is the scalar decay of RetNet and Mamba-2; with `λ = 1 - β` and `v = β v`
    this is the gated rule of Peng et al. 2021, "Random Feature Attention", section 3.2.

    Args:
        q, k, v, W, reset, backend: as in `sum_rule`.
        decay: λ `[T, B, H, V]`, after any sigmoid.

    Returns:
        y `[T, B, H, V]` and W after step T. Gradients reach every float argument.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return GATED_SUM(q, k, v, decay, W, reset, backend=backend)


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The delta rule on weights that decay first: `W_t = λ_t W_{t-1} + β_t (v_t - λ_t W_{t-1} k_t) k_tᵀ`.

    Yang, Kautz, Hatamizadeh 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule", equation 10.
    Arguments as in `delta_rule`, and decay λ `[T, B, H]`, one number a head, after any sigmoid.

    Returns:
        y `[T, B, H, V]` and W after step T.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return GATED_DELTA(q, k, v, beta, decay, W, reset, backend=backend)


def generalised_delta(
    q: Tensor,
    k: Tensor,
    u: Tensor,
    e: Tensor,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """One rule that contains the delta rules: S times a step `W = W diag(a)`, then `W = W + (u - W e) kᵀ`.

    `y_t = W_t q_t` is read after a step's last write. Which a, e, k and u make which memory is tabulated in
    README.md, "The generalised rule": Kimi Delta Attention, Gated DeltaNet-2, DeltaProduct, RWKV-7, others.

    Args:
        q: queries `[T, B, H, K]`.
        k: keys under which a step writes `[T, B, H, S, K]`.
        u: values `[T, B, H, S, V]`.
        e: erase keys: W e is subtracted from u `[T, B, H, S, K]`.
        decay: a `[T, B, H, S, K]`, per key channel, between 0 and 1.
        W: fast weights before the first step `[B, H, V, K]`.
        reset: bool `[T, B]`; W of row b is zeroed before step t writes.
        backend: one of `BACKENDS`.

    Returns:
        y `[T, B, H, V]` and W after step T. Gradients reach every float argument.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return GENERALISED_DELTA(q, k, u, e, decay, W, reset, backend=backend)


def momentum_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Erase as the delta rule does, and write with momentum: `C_t = η_t C_{t-1} + β_t v_t k_tᵀ`,
    `W_t = λ_t W_{t-1} (I - β_t k_t k_tᵀ) + C_t`.

    Zhong et al. 2025, "Understanding Transformer from the Perspective of Associative Memory", Table 2, with
    the write strength and decay of the gated delta rule, to which it reduces at η = 0. A pair that is written
    again and again reads back as v / (1 - η).

    Args:
        q, k, v, beta, W, reset, backend: as in `delta_rule`.
        decay, momentum: λ and η `[T, B, H]`, after any sigmoid.
        C: momentum, the running sum of writes, before the first step `[B, H, V, K]`.

    Returns:
        y `[T, B, H, V]`, W and C after step T. Gradients reach every float argument.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return MOMENTUM_DELTA(q, k, v, beta, decay, momentum, W, C, reset, backend=backend)


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


def delta_lstm(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    c0: Tensor,
    reset: Tensor,
    variant: str = "B",
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An LSTM whose recurrent weights, three matrices a head, learn by the delta rule.

    Irie et al. 2021, "Going Beyond Linear Transformers with Recurrent Fast Weight Programmers", equations
    20-40: with `p = softmax(y_{t-1})`, `i = sigmoid(z_i + R_i p)`, `u = sigmoid(z_u + R_u p)`, `o =
    sigmoid(z_o + R_o p)`, `c_t = i u + (1 - i) c_{t-1}` and `y_t = c_t o`. That is variant B; A reads with y
    itself, which is `softmax(c_t o)`; C adds z_u to y; D has no sigmoid around u.

    Args:
        z: pre-activations of i, u and o from other weights, head after head `[T, B, 3 H, V]`.
        k, v, beta: what is written into R, `[T, B, 3 H, V]` twice and `[T, B, 3 H]`, maps applied.
        R: recurrent fast weights before the first step `[B, 3 H, V, V]`.
        y0, c0: output and cell before the first step `[B, H, V]`.
        reset: bool `[T, B]`; R, y and c of row b are zeroed before step t reads them.
        variant: A, B, C or D.
        backend: one of `BACKENDS`.

    Returns:
        y `[T, B, H, V]`, R after step T, y_T, which is the last row of y, and c_T.

    Raises:
        ValueError: for an unknown variant or backend, or inputs that disagree.
    """
    if variant not in DELTA_LSTM:
        raise ValueError(f"delta_lstm: unknown variant {variant!r}; choose from {', '.join(DELTA_LSTM)}")
    return DELTA_LSTM[variant](z, k, v, beta, R, y0, c0, reset, backend=backend)


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
    """The LSTM recurrence, given input-to-hidden pre-activations: `i, f, g, o = gates_t + weight h_{t-1}`.

    Hochreiter & Schmidhuber 1997, "Long Short-Term Memory", with the forget gate of Gers et al. 2000:
    `c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)`, `h_t = sigmoid(o) tanh(c_t)`.

    Args:
        gates: input-to-hidden pre-activations of i, f, g, o, in this order, bias included `[T, B, 4 N]`.
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


def gru(
    gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """The GRU recurrence, given input-to-hidden pre-activations: `r, z, n = gates_t`, and from the last
    output `a, b, c = weight h_{t-1} + bias`.

    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
    Translation", as `torch.nn.GRU` has it: `h_t = (1 - sigmoid(z + b)) tanh(n + sigmoid(r + a) c) +
    sigmoid(z + b) h_{t-1}`.

    Args:
        gates: input-to-hidden pre-activations of r, z, n, in this order, input bias included `[T, B, 3 N]`.
        weight, bias: of h `[3 N, N]`, `[3 N]`.
        h0: output before the first step `[B, N]`.
        reset: bool `[T, B]`; h of row b is zeroed before step t reads it.
        backend: one of `BACKENDS`.

    Returns:
        h `[T, B, N]` and h_T, which is the last row of h. Gradients reach every float argument.

    Raises:
        ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
    """
    return GRU(gates, weight, bias, h0, reset, backend=backend)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bias: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
    normalise: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend to this step and the last M: `y = Σ w_i v_i / Σ w_i`, `w_i = exp(q·k_i / sqrt(K) + bias) Π λ`.

    Zhong et al. 2025, "Understanding Transformer from the Perspective of Associative Memory", Table 2, with
    a window that bounds the state, a decay λ applied to numerator and denominator, and a bias by age.

    Args:
        q, k: queries and keys `[T, B, H, K]`.
        v: values `[T, B, H, V]`.
        decay: λ `[T, B, H]`, after any sigmoid; ones for ungated attention.
        bias: added to the scores of the last M, by age from one step ago on `[T, B, H, M]`; the present step
            has none.
        keys, values, live: of the M steps before the first, the newest last `[B, H, M, K]`, `[B, H, M, V]`,
            `[B, H, M]`; live is the cumulative decay since the write, 0 for an empty slot, and values are
            multiplied by it.
        reset: bool `[T, B]`; the state of row b is zeroed before step t reads it.
        normalise: whether weights are divided by their sum.
        backend: one of `BACKENDS`.

    Returns:
        y `[T, B, H, V]`, keys, values and live after step T. Gradients reach every float argument.

    Raises:
        ValueError: for an unknown backend, or inputs that disagree.
    """
    return ATTENTION[normalise](q, k, v, decay, bias, keys, values, live, reset, backend=backend)


def deltaformer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    mix: Tensor,
    alpha: Tensor,
    beta: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
    first: str = "softmax",
    second: str = "softmax",
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend to delta-corrected values: each minus what the earlier ones already read out under its key.

    Zhong et al. 2025, "Understanding Transformer from the Perspective of Associative Memory", equations 41
    and 42: `u_t = α v_t - β Σ_{i<t} κ1(k_i·w_t / sqrt(K)) u_i`, `y_t = Σ_{i<=t} κ2(k_i·q_t / sqrt(K)) u_i`,
    sums over the last M.

    Args:
        q, w: queries, of the read and of the write `[T, B, H, G, K]`: G per key head.
        k, v: keys and values `[T, B, H, K]`, `[T, B, H, V]`.
        mix: per-group weights of κ1, whose G products are averaged `[H, G]`.
        alpha, beta: `[T, B, H]`.
        keys, values, live: as in `attention`, with u for values; live is 1, or 0 for an empty slot.
        reset: bool `[T, B]`; the state of row b is zeroed before step t reads it.
        first, second: κ1 and κ2, each exp, softmax (over the window), linear, relu or round, which is to the
            nearest whole number and has the gradient of linear.
        backend: one of `BACKENDS`.

    Returns:
        y `[T, B, H, G, V]`, keys, values and live after step T.

    Raises:
        ValueError: for an unknown kernel or backend, or inputs that disagree.
    """
    for kind in (first, second):
        if kind not in reference.KERNELS:
            raise ValueError(
                f"deltaformer: unknown kernel {kind!r}; choose from {', '.join(reference.KERNELS)}"
            )
    rule = deltaformer_rule(first, second)
    return rule(q, k, v, w, mix, alpha, beta, keys, values, live, reset, backend=backend)
