"""What stands before and after a memory when an actor steps it: one call of `dense.c` for each.

A step of few rows takes torch's operators longer to call than to compute. These functions of tensors
`[..., size]` have no gradients; `takes` says where they can be used. They equal torch's to rounding.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import compiling

MAX_WIDTH = 4096
"""Most numbers of a row: a few of them for each of 16 rows lie on the stack."""


def takes(x: Tensor, weights: Sequence[Tensor | None]) -> bool:
    """Return whether these functions can compute with x and weights here: float32 on a CPU, no gradients."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    for w in weights:
        if w is not None and not (w.dtype is torch.float32 and w.is_cpu and w.is_contiguous()):
            return False
    right = len(weights) > 0 and type(x) is Tensor and x.is_cpu and x.dtype is torch.float32
    return right and x.shape[-1] <= MAX_WIDTH and compiling.problem("dense.c", "LANES=8") is None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Compute `x weightᵀ + bias`, rectified if `relu`: x `[..., K]`, weight `[N, K]` -> `[..., N]`."""
    N, K = weight.shape
    y = x.new_empty((*x.shape[:-1], N))
    _call("linear", x, (K, N), N * K, relu, weight, bias, y)
    return y


def normalized_linear(x: Tensor, eps: float, norm: Tensor, norm_bias: Tensor, weight: Tensor) -> Tensor:
    """Compute `LN(x) weightᵀ`, LN with weight norm: x `[..., K]`, weight `[N, K]` -> `[..., N]`."""
    N, K = weight.shape
    y = x.new_empty((*x.shape[:-1], N))
    _call("normalized_linear", x, (K, N), N * K, eps, norm, norm_bias, weight, y)
    return y


def residual_feedforward(x: Tensor, y: Tensor, eps: float, out: Tensor, *weights: Tensor) -> Tensor:
    """Compute `z = x + y outᵀ`, then `z + relu(LN(z) w1ᵀ + b1) w2ᵀ + b2`: x, y and the result `[..., d]`.

    `weights`: weight and bias of LN, w1 `[ff, d]`, b1, w2 `[d, ff]`, b2.
    """
    ff, d = weights[2].shape
    result = x.new_empty(x.shape)
    _call("residual_feedforward", x, (d, ff), d * (d + 2 * ff), eps, y.contiguous(), out, *weights, result)
    return result


def _call(
    name: str, x: Tensor, sizes: tuple[int, int], work: int, setting: float, *tensors: Tensor | None
) -> None:
    """Call a function of `dense.c`; `work` is the number of its multiplications for each row of x."""
    if x.shape[-1] != sizes[0]:
        raise ValueError(f"{name}: x is {list(x.shape)}; give rows of {sizes[0]}")
    x = x.contiguous()
    rows = x.numel() // sizes[0]
    # Half as many lanes take half the time, where they are not too few.
    lanes = 8 if (rows - 1) % 16 < 8 else 16
    threads = min(torch.get_num_threads(), -(-rows // lanes)) if rows * work > 1 << 20 else 1
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    _function(name, lanes, len(tensors))(rows, *sizes, threads, setting, x.data_ptr(), *pointers)


@functools.cache
def _function(name: str, lanes: int, tensors: int) -> Any:
    function = getattr(compiling.library("dense.c", f"LANES={lanes}"), name)
    function.argtypes = [*[ctypes.c_int64] * 4, ctypes.c_float, *[ctypes.c_void_p] * (1 + tensors)]
    function.restype = None
    return function
