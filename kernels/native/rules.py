"""The rules of fast weights in C for CPUs: `rules.c`, `gated.c`, `generalised.c` and `delta_lstm.c`.

Each source is built once per head size, rounded up to a multiple of `BLOCK`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..shapes import widest
from ..untraced import constant
from . import compiling
from .compiling import addresses

if TYPE_CHECKING:
    from ..custom_ops import KernelSignature

NamedTensors = Mapping[str, Tensor | None]
BLOCK = 16
"""Rows are padded to a multiple of this; `-DSIXTEENS=n` builds a source for rows of n blocks."""
MAX_SIZE = 128
"""Maximum rows or columns of fast weights: a few such matrices fit in a core's first two caches."""


def tensor_reason(x: Tensor) -> str | None:
    """Return why C cannot read a tensor: its device or dtype; None if it can."""
    if x.device.type != "cpu":
        return f"the C kernels need CPU tensors, not {x.device.type} ones"
    return None if x.dtype is torch.float32 else f"the C kernels compute in float32, not {x.dtype}"


def unsupported_reason(inputs: tuple[Tensor, ...], file: str = "rules.c") -> str | None:
    """Return why the C kernels in a source cannot take these inputs, which passed `Shapes.check`, or None."""
    if reason := tensor_reason(inputs[0]):
        return reason
    size = widest(inputs)
    for blocks in range(1, MAX_SIZE // BLOCK + 1):
        if size <= BLOCK * blocks:  # no division: `torch.compile` may not know its result as a number
            return build_reason(file, blocks)
    return f"the C kernels take heads up to {MAX_SIZE} wide, not {size}"


class _Strided(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), *((name, ctypes.c_int64) for name in "tbh")]


class _Span(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("T", "B", "H", "V", "K", "threads")),
        ("reset", ctypes.c_void_p),
        ("writes", ctypes.c_int64),
    ]


_SCRATCH_MATRICES: dict[str, Callable[[int], int]] = {
    "gated": lambda steps: steps,
    "momentum": lambda steps: 2 * steps + steps // BLOCK + 1,
    "generalised": lambda writes: writes,
    "delta_rnn": lambda steps: steps,
    "recurrent_delta": lambda steps: steps,
    "delta_lstm": lambda steps: 3 * steps,
}
"""number of scratch matrices that a kernel's backward pass needs per thread, given its steps (writes)"""


def forward(kernel: KernelSignature, tensors: NamedTensors) -> None:
    """Fill the outputs, except those that are missing or empty."""
    outputs = [tensors.get(name) for name in kernel.outputs]
    pointers = addresses(*[tensors[name] for name in kernel.states_and_weights], *outputs)
    _call("forward", kernel, tensors, kernel.per_step, pointers)


def backward(kernel: KernelSignature, tensors: NamedTensors) -> None:
    """Fill the gradients of the inputs."""
    per_step = [name for name in kernel.backward_inputs if name in kernel.per_step]
    others = [name for name in kernel.backward_inputs if name not in kernel.per_step]
    gradients = (tensors.get(f"d{name}") for name in (*kernel.differentiable_outputs, *kernel.gradients))
    pointers = addresses(*(tensors[name] for name in others), *gradients)
    _call("backward", kernel, tensors, per_step, pointers)


def _new_scratch(W: Tensor, matrices: int) -> Tensor:
    """Allocate scratch for each thread: `[threads, matrices, size, size]`, size that of a padded row."""
    size = BLOCK * ((max(W.shape[2:]) + BLOCK - 1) // BLOCK)
    return W.new_empty(_threads(W, matrices), matrices, size, size)


def _threads(W: Tensor, steps: int) -> int:
    """Return how many threads to use: waking another costs as much as a small unroll."""
    return torch.get_num_threads() if steps * W.numel() > 1 << 19 else 1


def _strided(x: Tensor | None) -> _Strided:
    return _Strided() if x is None else _Strided(x.data_ptr(), *x.stride()[:3])


def _call(
    direction: str,
    kernel: KernelSignature,
    tensors: NamedTensors,
    per_step: Sequence[str],
    pointers: list[int | None],
) -> None:
    """Call a function of C; its arguments in order: span, per-step inputs, pointers, scratch, scalars."""
    W, reset = tensors[kernel.states[0]], tensors["reset"]
    assert W is not None and reset is not None
    if kernel.name == "delta_lstm":
        W = W[:, ::3]  # one of each head's three
    (B, H, V, K), steps = W.shape, reset.shape[0]
    writes = kernel.num_writes(tensors)
    span = _Span(steps, B, H, V, K, _threads(W, steps * writes), reset.data_ptr(), writes)
    scratch = None  # a name of its own, so that it outlives the call
    if direction == "backward" and kernel.name in _SCRATCH_MATRICES:
        scratch = _new_scratch(W, _SCRATCH_MATRICES[kernel.name](steps * writes))
        pointers += addresses(scratch)
    strided = [_strided(tensors.get(name)) for name in per_step]
    arguments = *strided, *pointers, *kernel.scalars.values()
    name, blocks = f"{kernel.name}_{direction}", (max(V, K) + BLOCK - 1) // BLOCK
    _function(name, blocks, len(strided), len(arguments))(span, *arguments)


@functools.cache
def _function(name: str, blocks: int, strided: int, arguments: int) -> Any:
    """Return a function of C that takes the span, so many `strided` arguments, then pointers and scalars."""
    others = [ctypes.c_void_p] * (arguments - strided)
    return compiling.typed(
        library(blocks, source(name)), name, ctypes.POINTER(_Span), *[_Strided] * strided, *others
    )


@constant
def build_reason(file: str, blocks: int) -> str | None:
    """Return why this machine cannot build a source for rows of so many blocks; None if it can."""
    return compiling.unsupported_reason(file, f"SIXTEENS={blocks}")


def source(rule: str) -> str:
    """Return the C source that has a kernel, or a function of one."""
    if rule.startswith(("gated", "momentum")):
        return "gated.c"
    own = next((name for name in ("delta_lstm", "generalised") if rule.startswith(name)), "rules")
    return f"{own}.c"


def library(blocks: int, file: str = "rules.c") -> ctypes.CDLL:
    """Load a source's functions for heads of so many blocks. Raises CannotBuildError."""
    return compiling.library(file, f"SIXTEENS={blocks}")
