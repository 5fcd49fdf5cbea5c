"""The rules in C for CPUs: calls into `rules.c`, which is built once per head size."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from ..shapes import widest
from . import compiling
from .compiling import addresses

BLOCK = 16
"""Rows are as long as a multiple of this: `SIXTEENS` in `rules.c`."""
MAX_SIZE = 128
"""Most rows or columns of fast weights: a few such matrices fit a processor's first two caches."""


def problem(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why the C kernels cannot take these inputs, which passed `Shapes.check`; None if they can."""
    return _problem("rules.c", inputs)


def gated_problem(inputs: tuple[Tensor, ...]) -> str | None:
    """Do as `problem`, for the rules that decay."""
    return _problem("gated.c", inputs)


def delta_lstm_problem(inputs: tuple[Tensor, ...]) -> str | None:
    return _problem("delta_lstm.c", inputs)


def _not_for_c(x: Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"the C kernels need CPU tensors, not {x.device.type} ones"
    return None if x.dtype is torch.float32 else f"the C kernels compute in float32, not {x.dtype}"


def _problem(file: str, inputs: tuple[Tensor, ...]) -> str | None:
    if problem := _not_for_c(inputs[0]):
        return problem
    size = widest(inputs)
    for blocks in range(1, MAX_SIZE // BLOCK + 1):
        if size <= BLOCK * blocks:  # no division: `torch.compile` may not know its result as a number
            return _cannot_build(file, blocks)
    return f"the C kernels take heads up to {MAX_SIZE} wide, not {size}"


class _Strided(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), *((name, ctypes.c_int64) for name in "tbh")]


class _Span(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("T", "B", "H", "V", "K", "threads")),
        ("reset", ctypes.c_void_p),
    ]


def delta_forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor, *outputs: Tensor | None
) -> None:
    """Fill outputs: y, W after the last step and, unless it is empty or None, the error."""
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta))
    _call("delta_forward", W, reset, *strided, *addresses(W, *outputs))


def delta_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    W: Tensor,
    reset: Tensor,
    error: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    *grads: Tensor,
) -> None:
    """Fill the gradients of q, k, v, beta and W."""
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta))
    _call("delta_backward", W, reset, *strided, *addresses(W, error, dy, dW_T, *grads))


def gated_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    *outputs: Tensor | None,
) -> None:
    """Fill outputs as `delta_forward` does."""
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta), _strided(decay))
    _call("gated_forward", W, reset, *strided, *addresses(W, *outputs[:-1]))


def gated_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    y: Tensor,
    W_T: Tensor,
    error: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    *grads: Tensor,
) -> None:
    """Fill the gradients of q, k, v, beta, decay and W."""
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta), _strided(decay))
    past = _new_past(W, len(reset))
    _call("gated_backward", W, reset, *strided, *addresses(W, error, y, W_T, dy, dW_T, *grads, past))


def momentum_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    *outputs: Tensor | None,
) -> None:
    """Fill outputs: y, W, C after the last step and, unless it is empty or None, what was found under k."""
    strided = [_strided(x) for x in (q, k, v, beta, decay, momentum)]
    _call("momentum_forward", W, reset, *strided, *addresses(W, C, *outputs[:-2]))


def momentum_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    y: Tensor,
    W_T: Tensor,
    C_T: Tensor,
    found: Tensor,
    kept: Tensor,
    kept_C: Tensor,
    *others: Tensor | None,
) -> None:
    """Fill the gradients of q, k, v, beta, decay, momentum, W, C, which follow those of y, W and C after."""
    strided = [_strided(x) for x in (q, k, v, beta, decay, momentum)]
    past = _new_past(W, 2 * len(reset) + len(reset) // BLOCK + 1)
    saved = addresses(W, C, found, y, W_T, C_T, *others, past)
    _call("momentum_backward", W, reset, *strided, *saved, past.shape[1])


def delta_rnn_forward(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor,
    *outputs: Tensor | None,
) -> None:
    """Fill outputs: y, R after the last step and, unless they are empty or None, error and p."""
    strided = (_strided(z), _strided(k), _strided(v), _strided(beta))
    _call("delta_rnn_forward", R, reset, *strided, *addresses(R, y0, *outputs[:-1]))


def delta_rnn_backward(
    k: Tensor,
    beta: Tensor,
    R: Tensor,
    reset: Tensor,
    error: Tensor,
    p: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dR_T: Tensor | None,
    *grads: Tensor,
) -> None:
    """Fill the gradients of z, k, v, beta, R and y0."""
    past = _new_past(R, len(reset))
    saved = addresses(R, error, p, dy, dR_T, *grads, past)
    _call("delta_rnn_backward", R, reset, _strided(k), _strided(beta), *saved)


def recurrent_delta_forward(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *others: Any) -> None:
    """Fill the outputs, which follow Rq, Rk, Rv, rb, W, y0 and reset: y, W after the last step and, unless
    they are empty or None, g, the q, k, beta used, and error."""
    *slow, W, y0, reset = others[:7]
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta))
    _call("recurrent_delta_forward", W, reset, *strided, *addresses(*slow, W, y0, *others[7:-1]))


def recurrent_delta_backward(
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    reset: Tensor,
    g: Tensor,
    q_used: Tensor,
    k_used: Tensor,
    beta_used: Tensor,
    error: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    *grads: Tensor,
) -> None:
    """Fill the gradients of q, k, v, beta, W and y0."""
    past = _new_past(W, len(reset))
    saved = (Rq, Rk, Rv, rb, W, g, q_used, k_used, beta_used, error)
    _call("recurrent_delta_backward", W, reset, *addresses(*saved, dy, dW_T, *grads, past))


def _new_past(W: Tensor, steps: int) -> Tensor:
    """Allocate, for each thread, room for one head's fast weights before every step."""
    size = BLOCK * ((max(W.shape[2:]) + BLOCK - 1) // BLOCK)
    return W.new_empty(_threads(W, steps), steps, size, size)


def _threads(W: Tensor, steps: int) -> int:
    """Return how many threads to use: waking another costs as much as a small unroll."""
    return torch.get_num_threads() if steps * W.numel() > 1 << 19 else 1


def _strided(x: Tensor | None) -> _Strided:
    return _Strided() if x is None else _Strided(x.data_ptr(), *x.stride()[:3])


def _call(name: str, W: Tensor, reset: Tensor, *arguments: Any) -> None:
    (B, H, V, K), steps = W.shape, reset.shape[0]
    span = _Span(steps, B, H, V, K, _threads(W, steps), reset.data_ptr())
    strided = sum(type(argument) is _Strided for argument in arguments[:6])
    _function(name, (max(V, K) + BLOCK - 1) // BLOCK, strided, len(arguments))(span, *arguments)


@functools.cache
def _function(name: str, blocks: int, strided: int, arguments: int) -> Any:
    """`strided` arguments come first, addresses follow."""
    others = [ctypes.c_void_p] * (arguments - strided)
    return compiling.typed(
        library(blocks, source(name)), name, ctypes.POINTER(_Span), *[_Strided] * strided, *others
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _cannot_build(file: str, blocks: int) -> str | None:
    return compiling.problem(file, f"SIXTEENS={blocks}")


def source(rule: str) -> str:
    """Return the file that has a rule, or a function of one."""
    if rule.startswith(("gated", "momentum")):
        return "gated.c"
    return "delta_lstm.c" if rule.startswith("delta_lstm") else "rules.c"


def library(blocks: int, file: str = "rules.c") -> ctypes.CDLL:
    """Load a source's functions for heads of so many blocks. Raises CannotBuildError."""
    return compiling.library(file, f"SIXTEENS={blocks}")
