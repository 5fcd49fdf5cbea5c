"""Convolutions without padding whose kernels are two or three strides wide, and a rectifier after them.

Those of `nature` and `shallow`: 8 x 8 with stride 4, 4 x 4 with stride 2, and 3 x 3. Winograd's minimal
filtering computes 5 x 5 outputs at a time from 36 products instead of 100, and 4 x 4 of a 3 x 3 kernel from
36 instead of 144. On CPUs, in float32, for outputs and squares of stride x stride pixels of a multiple of 16
numbers, `strided.c` does so, wrapped as a custom operator with gradients; elsewhere PyTorch's functions do
the same. A frame's results do not depend on those beside it, nor on the number of threads. Images are
channels-last.

A pixel that is not finite makes those of its tile nan, too.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..operator import Operator
from ..untraced import constant
from . import compiling
from .images import dense
from .weight_transforms import cached_transform

POINTS = 36
"""Products for each of a tile's pairs of inputs and outputs, as in `strided.c`."""
LANES = 16
"""For `strided.c` channels of outputs and the numbers of `stride` pixels are multiples of this, which vectors
of 8 and of 16 lanes divide."""
MAX_PARTS = 8
"""Sums that make up a weight's gradient, and so threads of a backward pass."""

DEFINE = "LANES=REGISTER"
"""vectors as wide as registers"""


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Compute `relu(conv2d(x, weight, bias, stride))`: x `[N, C, H, W]`, weight `[D, C, K, K]`."""
    if not _is_supported(x, weight, bias, stride):
        return F.relu(F.conv2d(x, weight, bias, stride), inplace=True)
    if x.shape[1] * stride % LANES:
        x, weight, stride = _squares(x, stride), _squares(weight, stride), 1
    y: Tensor = _conv_relu(x, weight, bias, stride)
    return y


def _is_supported(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> bool:
    tensors = (x, weight, bias)
    usual = all(t.device.type == "cpu" and t.dtype is torch.float32 for t in tensors)
    if not usual or torch.is_autocast_enabled("cpu") or x.dim() != 4:
        return False
    outputs, inputs, *kernel = weight.shape
    fits = kernel in ([2 * stride] * 2, [3 * stride] * 2) and min(x.shape[2:]) >= kernel[0]
    match = x.shape[1] == inputs and bias.shape == (outputs,)
    return fits and match and outputs % LANES == 0 and inputs * stride**2 % LANES == 0 and _in_c()


@constant
def _in_c() -> bool:
    return compiling.unsupported_reason("strided.c", DEFINE) is None


def _squares(x: Tensor, side: int) -> Tensor:
    """Make a pixel of each square of pixels: `[N, C, H, W]` -> `[N, side^2 C, H // side, W // side]`."""
    N, C, H, W = x.shape
    H, W = H // side, W // side
    rows = x[:, :, : H * side, : W * side].permute(0, 2, 3, 1).reshape(N, H, side, W, side * C)
    return rows.transpose(2, 3).reshape(N, H, W, side**2 * C).permute(0, 3, 1, 2)


def _fill(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> None:
    (x,) = dense(x)
    *_, D, R = sizes = _sizes(x, weight, stride)
    Q = weight[0].numel() // R**2
    threads = _threads(y.numel() * weight[0].numel())
    transformed = _transformed(weight, stride)
    (scratch,) = _scratch(threads * _size("scratch_size", Q, D))
    _call("convolve", (*sizes, threads), x, transformed, bias.contiguous(), y, scratch)


def _results(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    N, _, H, W = x.shape
    D, _, K, _ = weight.shape
    shape = N, D, (H - K) // stride + 1, (W - K) // stride + 1
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _fill_gradients(
    gradients: tuple[Tensor, ...],
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    stride: int,
    needs_dx: bool,
) -> None:
    dy, x, y = dense(dy, x, y)
    N, _, _, C, _, D, R = sizes = _sizes(x, weight, stride)
    Q = C * stride**2
    dx, dw, db = gradients
    parts = max(1, min(MAX_PARTS, N // 32))
    threads = min(parts, _threads(y.numel() * weight[0].numel()))
    transformed = _transformed(weight, stride, transposed=True) if needs_dx else None
    sums, scratch = _scratch(parts * (POINTS * Q + 1) * D, threads * _size("scratch_size", Q, D))
    pointers = x, y, dy, transformed, dx.zero_(), sums.zero_(), scratch
    _call("differentiate", (*sizes, parts, threads), *pointers)
    _call("weight_gradient", (C, stride, D, R, parts), sums, dw, db)


def _gradients(
    dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, stride: int, needs_dx: bool
) -> tuple[Tensor, ...]:
    """Allocate the gradients of x, empty unless needed, weight and bias."""
    dx = torch.empty_like(x, memory_format=torch.channels_last) if needs_dx else x.new_empty(0)
    dw = torch.empty_like(weight, memory_format=torch.channels_last)
    return dx, dw, dw.new_empty(len(weight))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.stride = inputs
    ctx.save_for_backward(x, output, weight)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    needs_dx = ctx.needs_input_grad[0]
    dx, dw, db = _backward(dy, *ctx.saved_tensors, ctx.stride, needs_dx)
    return dx if needs_dx else None, dw, db, None


_backward = Operator("conv_relu_backward", "dy x y weight | stride needs_dx", 3, _gradients, _fill_gradients)
_conv_relu = Operator("conv_relu", "x weight bias | stride", 1, _results, _fill, _save, _differentiate)


def _sizes(x: Tensor, weight: Tensor, stride: int) -> tuple[int, ...]:
    N, C, H, W = x.shape
    D, _, K, _ = weight.shape
    return N, H, W, C, stride, D, K // stride


def _transformed(weight: Tensor, stride: int, transposed: bool = False) -> Tensor:
    """Make a product's weights; if `transposed`, those for the gradient of x."""
    D, C, K, _ = weight.shape
    inputs, outputs = (D, C * stride**2) if transposed else (C * stride**2, D)

    def transform() -> Tensor:
        transformed = weight.new_empty(_size("weights_size", inputs, outputs))
        _call("transform_weights", (C, stride, D, K // stride, transposed), *dense(weight), transformed)
        return transformed

    return cached_transform(weight, ("strided", stride, transposed), transform)


_own = threading.local()


def _scratch(*sizes: int) -> tuple[Tensor, ...]:
    """Return uninitialised float32 tensors of these sizes, valid until the thread's next call for any layer.

    The memory is reused: allocated in each call, between longer-lived tensors, it would fragment the heap.
    """
    whole = sum(sizes := tuple(-(-size // LANES) * LANES for size in sizes))
    memory: Tensor | None = getattr(_own, "scratch", None)
    if memory is None or memory.numel() < whole:
        with torch.inference_mode(False):  # a pass with gradients may be next
            memory = _own.scratch = torch.empty(whole, dtype=torch.float32, device="cpu")
    parts: tuple[Tensor, ...] = memory[:whole].split(sizes)
    return parts


def _size(name: str, *numbers: int) -> int:
    return _size_in(DEFINE, name, *numbers)


@functools.cache
def _size_in(define: str, name: str, *numbers: int) -> int:
    function = getattr(compiling.library("strided.c", define), name)
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * len(numbers)
    return int(function(*numbers))


def _threads(work: int) -> int:
    """Return how many threads to use: waking another costs as much as a small image."""
    return torch.get_num_threads() if work > 1 << 24 else 1


def _call(name: str, sizes: tuple[int, ...], *tensors: Tensor | None) -> None:
    compiling.call("strided.c", DEFINE, name, sizes, *tensors)
