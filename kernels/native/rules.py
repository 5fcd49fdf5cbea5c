"""The rules in C for CPUs: calls into `rules.c`, which is built once per head size."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..shapes import widest
from . import compiling
from .compiling import addresses

if TYPE_CHECKING:
    from ..custom_ops import Kernel

Given = Mapping[str, Tensor | None]
BLOCK = 16
"""Rows are as long as a multiple of this: `SIXTEENS` in `rules.c`."""
MAX_SIZE = 128
"""Most rows or columns of fast weights: a few such matrices fit a processor's first two caches."""


def _not_for_c(x: Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"the C kernels need CPU tensors, not {x.device.type} ones"
    return None if x.dtype is torch.float32 else f"the C kernels compute in float32, not {x.dtype}"


def unsupported_reason(inputs: tuple[Tensor, ...], file: str = "rules.c") -> str | None:
    """Return why the C kernels of a file cannot take these inputs, which passed `Shapes.check`; None if they
    can."""
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
        ("writes", ctypes.c_int64),
    ]


_PAST: dict[str, Callable[[int], int]] = {
    "gated": lambda steps: steps,
    "momentum": lambda steps: 2 * steps + steps // BLOCK + 1,
    "generalised": lambda writes: writes,
    "delta_rnn": lambda steps: steps,
    "recurrent_delta": lambda steps: steps,
    "delta_lstm": lambda steps: 3 * steps,
}
"""For how many matrices the backward pass of a kernel needs room in each thread."""


def forward(kernel: Kernel, given: Given) -> None:
    """Fill the outputs but for those that are missing or empty."""
    filled = [given.get(name) for name in kernel.outputs]
    pointers = addresses(*[given[name] for name in kernel.states_and_weights], *filled)
    _call("forward", kernel, given, kernel.per_step, pointers)


def backward(kernel: Kernel, given: Given) -> None:
    """Fill the gradients of inputs."""
    steps = [name for name in kernel.backward_inputs if name in kernel.per_step]
    others = [name for name in kernel.backward_inputs if name not in kernel.per_step]
    ends_and_gradients = (given.get(f"d{name}") for name in (*kernel.ends, *kernel.gradients))
    pointers = addresses(*(given[name] for name in others), *ends_and_gradients)
    _call("backward", kernel, given, steps, pointers)


def _new_past(W: Tensor, steps: int) -> Tensor:
    """Allocate, for each thread, room for one head's fast weights before every step."""
    size = BLOCK * ((max(W.shape[2:]) + BLOCK - 1) // BLOCK)
    return W.new_empty(_threads(W, steps), steps, size, size)


def _threads(W: Tensor, steps: int) -> int:
    """Return how many threads to use: waking another costs as much as a small unroll."""
    return torch.get_num_threads() if steps * W.numel() > 1 << 19 else 1


def _strided(x: Tensor | None) -> _Strided:
    return _Strided() if x is None else _Strided(x.data_ptr(), *x.stride()[:3])


def _call(
    direction: str, kernel: Kernel, given: Given, per_step: Sequence[str], pointers: list[int | None]
) -> None:
    W, reset = given[kernel.states[0]], given["reset"]
    assert W is not None and reset is not None
    if kernel.name == "delta_lstm":
        W = W[:, ::3]  # one of each head's three
    (B, H, V, K), steps = W.shape, reset.shape[0]
    writes = next((x.shape[3] for x in map(given.get, per_step) if x is not None and x.dim() == 5), 1)
    span = _Span(steps, B, H, V, K, _threads(W, steps * writes), reset.data_ptr(), writes)
    past = None
    if direction == "backward" and kernel.name in _PAST:
        past = _new_past(W, _PAST[kernel.name](steps * writes))
        pointers += addresses(past)
    strided = [_strided(given.get(name)) for name in per_step]
    arguments = *strided, *pointers, *kernel.numbers.values()
    name, blocks = f"{kernel.name}_{direction}", (max(V, K) + BLOCK - 1) // BLOCK
    _function(name, blocks, len(strided), len(arguments))(span, *arguments)


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
    own = next((name for name in ("delta_lstm", "generalised") if rule.startswith(name)), "rules")
    return f"{own}.c"


def library(blocks: int, file: str = "rules.c") -> ctypes.CDLL:
    """Load a source's functions for heads of so many blocks. Raises CannotBuildError."""
    return compiling.library(file, f"SIXTEENS={blocks}")
