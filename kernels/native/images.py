"""The stems' work around their convolutions: bytes to floats, pooling, sums and rectifiers.

On CPUs, where memory bounds all of them, each is one pass in C (`images.c`), wrapped as a custom operator
with gradients; elsewhere, or without a compiler, PyTorch's functions do the same. Images are channels-last.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..pytorch.stepwise import wants_gradient
from . import compiling

LANES = 16
"""The number of channels must be a multiple of this, as in `images.c`."""
_DTYPES = {torch.float32: "BF16=0", torch.bfloat16: "BF16=1"}


def scaled(frame: Tensor, dtype: torch.dtype) -> Tensor:
    """Divide uint8 `[N, C, H, W]` by 255."""
    if frame.dtype is not torch.uint8:
        raise ValueError(f"scaled: frame is {frame.dtype}; give torch.uint8")
    if frame.device.type == "cpu" and _in_c(dtype):
        return (_scaled if _as_operator(frame) else _scaled_in_c)(frame, dtype)
    # bfloat16 holds 0 to 255 exactly.
    return frame.to(dtype=dtype, memory_format=torch.channels_last).div_(255.0)


def pool_relu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `y = max_pool2d(x, 3, stride=2, padding=1)` and `relu(y)`; x `[N, C, H, W]`."""
    if _takes(x):
        y, r, _ = _pool_relu(x, wants_gradient(x)) if _as_operator(x) else _pool_relu_in_c(x, False)
        return y, r
    y = F.max_pool2d(x, 3, stride=2, padding=1)
    return y, F.relu(y)


def add_relu(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `y = a + b` and `relu(y)` for a and b of one shape; a may be overwritten."""
    if a.shape != b.shape or a.device != b.device:
        wanted = f"{list(a.shape)} on {a.device}, as a is"
        raise ValueError(f"add_relu: b is {list(b.shape)} on {b.device}; give {wanted}")
    if _takes(a) and a.dtype == b.dtype:
        return (_add_relu if _as_operator(a, b) else _add_relu_in_c)(a, b)
    y = a.add_(b)
    return y, F.relu(y)


def _takes(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.shape[1] % LANES == 0 and _in_c(x.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _in_c(dtype: torch.dtype) -> bool:
    return dtype in _DTYPES and compiling.problem("images.c", _DTYPES[dtype]) is None


def _as_operator(*xs: Tensor) -> bool:
    """Return whether PyTorch has to see the function, to differentiate or compile it, which costs time."""
    return compiling.is_watched() or wants_gradient(*xs) or any(type(x) is not Tensor for x in xs)


def _scaled_in_c(frame: Tensor, dtype: torch.dtype) -> Tensor:
    y = _scaled_fake(frame, dtype)
    N, C, H, W = frame.shape
    _call(dtype, "scale", (N, C, H * W), y, frame.contiguous(), y)
    return y


_scaled = torch.library.custom_op("deltabeast::scaled", mutates_args=())(_scaled_in_c)


@_scaled.register_fake
def _scaled_fake(frame: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(frame, dtype=dtype, memory_format=torch.channels_last)


def _pool_relu_in_c(x: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, relu(y), and for backward each maximum's place in its window, empty unless `keep`."""
    (x,) = _dense(x)
    y, r, which = outputs = _pool_relu_fake(x, keep)
    _call(x.dtype, "pool_relu", _sizes(x), x, x, y, r, which)
    return outputs


_pool_relu = torch.library.custom_op("deltabeast::pool_relu", mutates_args=())(_pool_relu_in_c)


@_pool_relu.register_fake
def _pool_relu_fake(x: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    N, C, H, W = x.shape
    y = _new(x, N, C, (H + 1) // 2, (W + 1) // 2)
    which = torch.empty_like(y, dtype=torch.uint8) if keep else x.new_empty(0, dtype=torch.uint8)
    return y, torch.empty_like(y), which


@torch.library.custom_op("deltabeast::pool_relu_backward", mutates_args=())
def _pool_relu_backward(dy: Tensor, dr: Tensor, r: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    dy, dr = _dense(dy, dr)
    dx = _pool_relu_backward_fake(dy, dr, r, which, H, W)
    _call(r.dtype, "pool_relu_backward", _sizes(dx), dx, dy, dr, r, which, dx)
    return dx


@_pool_relu_backward.register_fake
def _pool_relu_backward_fake(dy: Tensor, dr: Tensor, r: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    return _new(r, *r.shape[:2], H, W)


def _pool_relu_save(ctx: Any, inputs: tuple[Tensor, bool], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    x, _ = inputs
    _, r, which = output
    ctx.size = x.shape[2:]
    ctx.save_for_backward(r, which)


def _pool_relu_differentiate(ctx: Any, dy: Tensor | None, dr: Tensor | None, _: None) -> tuple[Tensor, None]:
    r, which = ctx.saved_tensors
    return _pool_relu_backward(_or_zeros(dy, r), _or_zeros(dr, r), r, which, *ctx.size), None


torch.library.register_autograd(_pool_relu, _pool_relu_differentiate, setup_context=_pool_relu_save)


def _add_relu_in_c(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = _dense(a, b)
    y, r = _add_relu_fake(a, b)
    _call(a.dtype, "add_relu", (a.numel(),), a, a, b, y, r)
    return y, r


_add_relu = torch.library.custom_op("deltabeast::add_relu", mutates_args=())(_add_relu_in_c)


@_add_relu.register_fake
def _add_relu_fake(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(a, memory_format=torch.channels_last)
    return y, torch.empty_like(y)


@torch.library.custom_op("deltabeast::add_relu_backward", mutates_args=())
def _add_relu_backward(dy: Tensor, dr: Tensor, r: Tensor) -> Tensor:
    dy, dr = _dense(dy, dr)
    dx = torch.empty_like(r)
    _call(r.dtype, "add_relu_backward", (r.numel(),), r, dy, dr, r, dx)
    return dx


@_add_relu_backward.register_fake
def _add_relu_backward_fake(dy: Tensor, dr: Tensor, r: Tensor) -> Tensor:
    return torch.empty_like(r)


def _add_relu_save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _add_relu_differentiate(ctx: Any, dy: Tensor | None, dr: Tensor | None) -> tuple[Tensor, Tensor]:
    (r,) = ctx.saved_tensors
    d = _add_relu_backward(_or_zeros(dy, r), _or_zeros(dr, r), r)
    return d, d


torch.library.register_autograd(_add_relu, _add_relu_differentiate, setup_context=_add_relu_save)


def _new(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _dense(*xs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.contiguous(memory_format=torch.channels_last) for x in xs)


def _sizes(x: Tensor) -> tuple[int, ...]:
    """Return N, H, W, C."""
    N, C, H, W = x.shape
    return N, H, W, C


def _call(dtype: torch.dtype, name: str, sizes: tuple[int, ...], largest: Tensor, *xs: Tensor) -> None:
    integers = [ctypes.c_int64(size) for size in (*sizes, _threads(largest))]
    getattr(compiling.library("images.c", _DTYPES[dtype]), name)(*integers, *compiling.pointers(*xs))


def _threads(largest: Tensor) -> int:
    """Return how many threads to use: waking another costs as much as a small image."""
    return torch.get_num_threads() if largest.numel() > 1 << 18 else 1
