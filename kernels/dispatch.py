"""The public functions: which code computes a rule, by device, shape and the caller's wish."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import chunked, reference, stepwise
from .precision import without_autocast

BACKENDS = ("auto", "reference", "chunked", "triton")

MAX_TRITON_SIZE = 64
"""Width of a head up to which its fast weights fit into the registers of one program."""


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
        ValueError: for an unknown backend, or a reset that is not bool `[T, B]`.
    """
    return _pick("sum_rule", backend, q, W, reset)(q, k, v, W, reset)


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
        ValueError: for an unknown backend, or a reset that is not bool `[T, B]`.
    """
    return _pick("delta_rule", backend, q, W, reset)(q, k, v, beta, W, reset)


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
        ValueError: for an unknown backend, or a reset that is not bool `[T, B]`.
    """
    return _pick("delta_rnn", backend, z, R, reset)(z, k, v, beta, R, y0, reset)


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
    15-17, with the softmax on q and k and the recurrent matrices per head of the released code:
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
        ValueError: for an unknown backend, or a reset that is not bool `[T, B]`.
    """
    rule = _pick("recurrent_delta", backend, q, W, reset)
    return rule(q, k, v, beta, Rq, Rk, Rv, rb, W, y0, reset)


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
}


def backends(device: torch.device) -> dict[str, tuple[str, ...]]:
    """The backends of every rule that run on a device in float32, without `auto`, which is one of them."""
    found = {rule: [name for name in BACKENDS if name in rules] for rule, rules in _RULES.items()}
    if _no_triton(device) is None:
        for names in found.values():
            names.append("triton")
    return {rule: tuple(names) for rule, names in found.items()}


def _pick(rule: str, backend: str, x: Tensor, W: Tensor, reset: Tensor) -> Callable[..., Any]:
    if reset.dtype is not torch.bool or reset.shape != x.shape[:2]:
        raise ValueError(f"{rule}: reset is {reset.dtype} {list(reset.shape)}; give bool {list(x.shape[:2])}")
    if backend not in BACKENDS:
        raise ValueError(f"{rule}: unknown backend {backend!r}; choose from {', '.join(BACKENDS)}")
    rules = _RULES[rule]
    if backend == "triton" or (backend == "auto" and x.is_cuda):
        reason = _not_for_triton(x, W)
        if reason is None:
            return _triton_rules()[rule]
        if backend == "triton":
            raise ValueError(f"{rule}: {reason}")
    if backend != "auto":
        return rules[backend]
    if x.shape[0] == 1 and "step" in rules:
        return rules["reference" if torch.is_grad_enabled() else "step"]
    return rules["chunked"]


def _not_for_triton(x: Tensor, W: Tensor) -> str | None:
    """Why the Triton kernels cannot take these, with the remedy; None if they can."""
    if W.dtype is not torch.float32 or x.dtype is not torch.float32:
        return f"the triton backend takes float32, not {x.dtype} and {W.dtype}; choose chunked"
    if max(W.shape[-2:]) > MAX_TRITON_SIZE:
        return (
            f"the triton backend holds heads up to {MAX_TRITON_SIZE} wide, not {max(W.shape[-2:])}; "
            "use more heads, or choose chunked"
        )
    return _no_triton(x.device)


@functools.cache
def _no_triton(device: torch.device) -> str | None:
    """Why Triton cannot run on a device, with the remedy; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "the triton backend needs the package triton; pip install triton (Linux)"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the triton backend runs on cuda, not {device.type}; choose chunked"
    return None


@functools.cache
def _triton_rules() -> dict[str, Callable[..., Any]]:
    from . import triton_delta, triton_recurrent  # only here: importing triton is slow, and it may be missing

    return {
        "sum_rule": triton_delta.sum_rule,
        "delta_rule": triton_delta.delta_rule,
        "delta_rnn": triton_recurrent.delta_rnn,
        "recurrent_delta": triton_recurrent.recurrent_delta,
    }
