"""The stems' work around their convolutions: bytes to floats, pooling, sums and rectifiers.

On CPUs, where memory bounds all of them, each is one pass in C (`images.c`), wrapped as a custom operator
with gradients; elsewhere, or without a compiler, PyTorch's functions do the same. Images are channels-last.

Whoever keeps activations and writes backward by hand has `*_into`, which fill given tensors, and
`*_backward`. None of these records gradients.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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


def scaled_into(frame: Tensor, y: Tensor) -> None:
    """Write `scaled` of frame into y, in y's dtype. Outputs are channels-last and dense, here and below."""
    if frame.dtype is not torch.uint8:
        raise ValueError(f"scaled_into: frame is {frame.dtype}; give torch.uint8")
    _check_outputs("scaled_into", frame.shape, y.dtype, frame.device, y=y)
    if not (y.device.type == "cpu" and _in_c(y.dtype)):
        y.copy_(frame).div_(255.0)
        return
    N, C, H, W = frame.shape
    _call(y.dtype, "scale", (N, C, H * W), y, frame.contiguous(), y)


def pool_relu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `y = max_pool2d(x, 3, stride=2, padding=1)` and `relu(y)`; x `[N, C, H, W]`."""
    if _takes(x):
        y, r, _ = _pool_relu(x, wants_gradient(x)) if _as_operator(x) else _pool_relu_in_c(x, False)
        return y, r
    y = F.max_pool2d(x, 3, stride=2, padding=1)
    return y, F.relu(y)


def pool_relu_into(x: Tensor, y: Tensor, r: Tensor, which: Tensor | None = None) -> None:
    """Write `pool_relu` of x `[N, C, H, W]` into y and r, x's dtype, `[N, C, (H + 1) // 2, (W + 1) // 2]`,
    and each maximum's place in its window, 0 to 8, into `which`, uint8 of that shape, if given.
    """
    shape = _pooled(x.shape)
    _check_outputs("pool_relu_into", shape, x.dtype, x.device, y=y, r=r)
    if which is not None:
        _check_outputs("pool_relu_into", shape, torch.uint8, x.device, which=which)
    if _takes(x):
        (x,) = _dense(x)
        _call(x.dtype, "pool_relu", _sizes(x), x, x, y, r, which)
        return
    pooled, index = F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)
    y.copy_(pooled)
    r.copy_(F.relu(pooled))
    if which is not None:
        row, column = _first_pixels(which)
        W = x.shape[3]
        which.copy_(3 * (index // W - row) + index % W - column)


def pool_relu_backward(dy: Tensor, dr: Tensor, r: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    """Return the gradient of `pool_relu`'s x `[N, C, H, W]` from those of y and r."""
    _check("pool_relu_backward", r.shape, r.dtype, r.device, dy=dy, dr=dr)
    _check("pool_relu_backward", r.shape, torch.uint8, r.device, which=which)
    shape = (*r.shape[:2], H, W)
    if _pooled(shape) != tuple(r.shape):
        wanted = f"{list(_pooled(shape))}, as windows of {H} x {W} pixels are"
        raise ValueError(f"pool_relu_backward: r is {list(r.shape)}; give {wanted}")
    if _takes(r):
        dy, dr, r, which = _dense(dy, dr, r, which)
        dx = _new(r, *shape)
        _call(r.dtype, "pool_relu_backward", _sizes(dx), dx, dy, dr, r, which, dx)
        return dx
    row, column = _first_pixels(which)
    place = which.long()
    index = (row + place // 3) * W + column + place % 3
    d = _unrectified(dy, dr, r)
    dx = d.new_zeros(*shape[:2], H * W).scatter_add_(2, index.flatten(2), d.flatten(2))
    return dx.view(shape).to(dtype=r.dtype, memory_format=torch.channels_last)


def add_relu(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `y = a + b` and `relu(y)` for a and b of one shape; a may be overwritten."""
    if a.shape != b.shape or a.device != b.device:
        wanted = f"{list(a.shape)} on {a.device}, as a is"
        raise ValueError(f"add_relu: b is {list(b.shape)} on {b.device}; give {wanted}")
    if _takes(a) and a.dtype == b.dtype:
        return (_add_relu if _as_operator(a, b) else _add_relu_in_c)(a, b)
    y = a.add_(b)
    return y, F.relu(y)


def add_relu_into(a: Tensor, b: Tensor, y: Tensor, r: Tensor) -> None:
    """Write `add_relu` of a and b, of one shape and dtype, into y and r; y may be a or b itself."""
    _check("add_relu_into", a.shape, a.dtype, a.device, b=b)
    _check_outputs("add_relu_into", a.shape, a.dtype, a.device, y=y, r=r)
    if _takes(a):
        a, b = _dense(a, b)
        _call(a.dtype, "add_relu", (a.numel(),), a, a, b, y, r)
        return
    y.copy_(a + b)
    r.copy_(F.relu(y))


def add_relu_backward(dy: Tensor, dr: Tensor, r: Tensor) -> Tensor:
    """Return the gradient of `add_relu`'s a, which is also that of b, from those of y and r."""
    _check("add_relu_backward", r.shape, r.dtype, r.device, dy=dy, dr=dr)
    if _takes(r):
        dy, dr, r = _dense(dy, dr, r)
        dx = torch.empty_like(r)
        _call(r.dtype, "add_relu_backward", (r.numel(),), r, dy, dr, r, dx)
        return dx
    return _unrectified(dy, dr, r).to(dtype=r.dtype, memory_format=torch.channels_last)


def _takes(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.shape[1] % LANES == 0 and _in_c(x.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _in_c(dtype: torch.dtype) -> bool:
    return dtype in _DTYPES and compiling.problem("images.c", _DTYPES[dtype]) is None


def _as_operator(*xs: Tensor) -> bool:
    """Return whether PyTorch has to see the function, to differentiate or compile it: 30 us more a call."""
    return torch.compiler.is_compiling() or wants_gradient(*xs) or any(type(x) is not Tensor for x in xs)


def _scaled_in_c(frame: Tensor, dtype: torch.dtype) -> Tensor:
    y = _scaled_fake(frame, dtype)
    scaled_into(frame, y)
    return y


_scaled = torch.library.custom_op("deltabeast::scaled", mutates_args=())(_scaled_in_c)


@_scaled.register_fake
def _scaled_fake(frame: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(frame, dtype=dtype, memory_format=torch.channels_last)


def _pool_relu_in_c(x: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, relu(y), and for backward each maximum's place in its window, empty unless `keep`."""
    y, r, which = outputs = _pool_relu_fake(x, keep)
    pool_relu_into(x, y, r, which if keep else None)
    return outputs


_pool_relu = torch.library.custom_op("deltabeast::pool_relu", mutates_args=())(_pool_relu_in_c)


@_pool_relu.register_fake
def _pool_relu_fake(x: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    y = _new(x, *_pooled(x.shape))
    which = torch.empty_like(y, dtype=torch.uint8) if keep else x.new_empty(0, dtype=torch.uint8)
    return y, torch.empty_like(y), which


_pool_relu_backward = torch.library.custom_op("deltabeast::pool_relu_backward", mutates_args=())(
    pool_relu_backward
)


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
    y, r = _add_relu_fake(a, b)
    add_relu_into(a, b, y, r)
    return y, r


_add_relu = torch.library.custom_op("deltabeast::add_relu", mutates_args=())(_add_relu_in_c)


@_add_relu.register_fake
def _add_relu_fake(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(a, memory_format=torch.channels_last)
    return y, torch.empty_like(y)


_add_relu_backward = torch.library.custom_op("deltabeast::add_relu_backward", mutates_args=())(
    add_relu_backward
)


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


def _pooled(shape: Sequence[int]) -> tuple[int, int, int, int]:
    N, C, H, W = shape
    return N, C, (H + 1) // 2, (W + 1) // 2


def _first_pixels(which: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row `[h, 1]` and the column `[w]` of each window's first pixel, padding included."""
    row, column = (2 * torch.arange(size, device=which.device) - 1 for size in which.shape[2:])
    return row.unsqueeze(-1), column


def _unrectified(dy: Tensor, dr: Tensor, r: Tensor) -> Tensor:
    """Return the gradient of y from its own and that of r = relu(y), in float32 or wider, as in C."""
    dtype = torch.promote_types(r.dtype, torch.float32)
    return dy.to(dtype) + dr.to(dtype).masked_fill(r <= 0, 0)


def _new(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _dense(*xs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.contiguous(memory_format=torch.channels_last) for x in xs)


def _check(
    function: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device, **xs: Tensor
) -> None:
    """Raise ValueError unless all are such tensors: C trusts what it is told."""
    for name, x in xs.items():
        if x.shape != shape or x.dtype != dtype or x.device != device:
            given, wanted = f"{x.dtype} {list(x.shape)} on {x.device}", f"{dtype} {list(shape)} on {device}"
            raise ValueError(f"{function}: {name} is {given}; give {wanted}")


def _check_outputs(
    function: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device, **xs: Tensor
) -> None:
    """Raise ValueError unless all are such tensors, channels-last without gaps."""
    _check(function, shape, dtype, device, **xs)
    for name, x in xs.items():
        if not x.is_contiguous(memory_format=torch.channels_last):
            remedy = "give one made with memory_format=torch.channels_last"
            raise ValueError(f"{function}: {name} has strides {x.stride()}; {remedy}")


def _sizes(x: Tensor) -> tuple[int, ...]:
    """Return N, H, W, C."""
    N, C, H, W = x.shape
    return N, H, W, C


def _call(dtype: torch.dtype, name: str, sizes: tuple[int, ...], largest: Tensor, *xs: Tensor | None) -> None:
    integers = [ctypes.c_int64(size) for size in (*sizes, _threads(largest))]
    getattr(compiling.library("images.c", _DTYPES[dtype]), name)(*integers, *compiling.pointers(*xs))


def _threads(largest: Tensor) -> int:
    """Return how many threads to use: waking another costs as much as a small image."""
    return torch.get_num_threads() if largest.numel() > 1 << 18 else 1
