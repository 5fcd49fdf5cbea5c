"""The rules in C for CPUs: calls into `rules.c`, which is built once per head size."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
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


def unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why the C kernels cannot take these inputs, which passed `Shapes.check`; None if they can."""
    return _unsupported_reason("rules.c", inputs)


def gated_unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Like `unsupported_reason`, for the rules that decay."""
    return _unsupported_reason("gated.c", inputs)


def delta_lstm_unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    return _unsupported_reason("delta_lstm.c", inputs)


def _not_for_c(x: Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"the C kernels need CPU tensors, not {x.device.type} ones"
    return None if x.dtype is torch.float32 else f"the C kernels compute in float32, not {x.dtype}"


def _unsupported_reason(file: str, inputs: tuple[Tensor, ...]) -> str | None:
    if reason := _not_for_c(inputs[0]):
        return reason
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


_PAST: dict[str, Callable[[int], int]] = {
    "gated": lambda steps: steps,
    "momentum": lambda steps: 2 * steps + steps // BLOCK + 1,
    "delta_rnn": lambda steps: steps,
    "recurrent_delta": lambda steps: steps,
    "delta_lstm": lambda steps: 3 * steps,
}
"""For how many matrices the backward pass of a kernel needs room in each thread."""


def forward(
    kernel: str,
    per_step: Sequence[Tensor | None],
    others: Sequence[Tensor],
    W: Tensor,
    reset: Tensor,
    outputs: Sequence[Tensor | None],
    checkpoints: Sequence[Tensor],
    option: Sequence[int],
) -> None:
    """Fill outputs but for those that are None or empty; checkpoints are not needed here."""
    pointers = addresses(*others, *outputs)
    _call(f"{kernel}_forward", _one_a_head(kernel, W), reset, *map(_strided, per_step), *pointers, *option)


def backward(
    kernel: str,
    per_step: Sequence[Tensor | None],
    others: Sequence[Tensor],
    outputs: Sequence[Tensor],
    W: Tensor,
    reset: Tensor,
    checkpoints: Sequence[Tensor],
    ends: Sequence[Tensor | None],
    gradients: Sequence[Tensor],
    option: Sequence[int],
) -> None:
    """Fill the gradients, which follow those of y and of the last states, `ends`."""
    W = _one_a_head(kernel, W)
    past = [_new_past(W, _PAST[kernel](len(reset)))] if kernel in _PAST else []
    pointers = addresses(*others, *outputs, *ends, *gradients, *past)
    _call(f"{kernel}_backward", W, reset, *map(_strided, per_step), *pointers, *option)


def _one_a_head(kernel: str, W: Tensor) -> Tensor:
    """Return one of each head's matrices, of which the Delta LSTM has three."""
    return W[:, ::3] if kernel == "delta_lstm" else W


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
    return compiling.unsupported_reason(file, f"SIXTEENS={blocks}")


def source(rule: str) -> str:
    """Return the file that has a rule, or a function of one."""
    if rule.startswith(("gated", "momentum")):
        return "gated.c"
    return "delta_lstm.c" if rule.startswith("delta_lstm") else "rules.c"


def library(blocks: int, file: str = "rules.c") -> ctypes.CDLL:
    """Load a source's functions for heads of so many blocks. Raises CannotBuildError."""
    return compiling.library(file, f"SIXTEENS={blocks}")
