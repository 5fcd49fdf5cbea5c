"""The public functions: which code computes a rule, by device, shape and the caller's wish."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from . import chunked, fused, native, reference, shapes, stepwise
from .precision import without_autocast

FUSED = ("native", "triton")
BACKENDS = ("auto", "reference", "chunked", *FUSED)


@without_autocast
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
    return _run("sum_rule", backend, q, k, v, W, reset)


@without_autocast
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
    return _run("delta_rule", backend, q, k, v, beta, W, reset)


@without_autocast
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
    """`y_t = z_t + R_t softmax(y_{t-1})`, where R learns by the delta rule from k, v and beta.

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
    return _run("delta_rnn", backend, z, k, v, beta, R, y0, reset)


@without_autocast
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
    """The delta rule whose queries, keys, values and write strengths also depend on its last output.

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
    return _run("recurrent_delta", backend, q, k, v, beta, Rq, Rk, Rv, rb, W, y0, reset)


@without_autocast
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
    return _run("lstm", backend, gates, weight, h0, c0, reset)


_RULES: dict[str, dict[str, Callable[..., Any]]] = {
    "sum_rule": {"reference": reference.sum_rule, "chunked": chunked.sum_rule, "step": stepwise.sum_rule},
    "delta_rule": {
        "reference": reference.delta_rule,
        "chunked": chunked.delta_rule,
        "step": stepwise.delta_rule,
    },
    "delta_rnn": {
        "reference": reference.delta_rnn,
        "chunked": chunked.delta_rnn,
        "step": stepwise.delta_rnn,
    },
    "recurrent_delta": {"reference": reference.recurrent_delta, "chunked": stepwise.recurrent_delta},
    "lstm": {"reference": reference.lstm, "chunked": stepwise.lstm},
}


def backends(device: torch.device, head_size: int) -> dict[str, tuple[str, ...]]:
    """The backends that compute a rule on a device in float32, without `auto`, which is one of them."""
    x = torch.empty(1, 1, 1, head_size, device=device)
    inputs = (x, x, x, x.new_zeros(1, 1, dtype=torch.bool))
    fuse = _fused_on(device)  # Triton's interpreter computes on CPUs too, but is no backend to use there
    names: dict[str, tuple[str, ...]] = {}
    for rule, rules in _RULES.items():
        more = (fuse,) if _problem(fuse, rule, inputs) is None else ()
        names[rule] = (*(name for name in BACKENDS if name in rules), *more)
    return names


def _fused_on(device: torch.device) -> str:
    return "triton" if device.type == "cuda" else "native"


def _run(rule: str, backend: str, *inputs: Tensor) -> Any:
    """The rule by that backend; inputs in the rule's order, reset last."""
    if backend not in BACKENDS:
        raise ValueError(f"{rule}: unknown backend {backend!r}; choose from {', '.join(BACKENDS)}")
    shapes.check(rule, inputs)
    x = inputs[0]
    fuse = backend if backend in FUSED else _fused_on(x.device)
    if backend in ("auto", fuse):
        problem = _problem(fuse, rule, inputs)
        if problem is None:
            if rule == "lstm":  # an operator of its own, in Triton alone
                return _triton().lstm(*inputs)
            return getattr(fused, rule)(*inputs, fuse)
        if backend == fuse:
            raise ValueError(f"{rule}: {problem}")
    if backend == "auto":
        one_step = x.shape[0] == 1 and "step" in _RULES[rule]
        backend = ("reference" if torch.is_grad_enabled() else "step") if one_step else "chunked"
    return _loop(_RULES[rule][backend], *inputs)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _loop(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Left out by `torch.compile`, which would compile every step, and again for other resets."""
    return function(*inputs)


def _problem(backend: str, rule: str, inputs: tuple[Tensor, ...]) -> str | None:
    """Why that fused backend cannot compute the rule for these inputs; None if it can."""
    if backend == "native":
        return native.problem(rule, inputs)
    in_triton = _triton()
    problem: str | None = in_triton.problem(rule, inputs) if in_triton else _NO_TRITON
    return problem


_HAS_TRITON = find_spec("triton") is not None
_NO_TRITON = "Triton is not installed; pip install triton (Linux only)"


def _triton() -> Any:
    """`triton_rules`, imported when first asked for; None on machines that have no Triton."""
    if not _HAS_TRITON:
        return None
    from . import triton_rules

    return triton_rules
