"""The stems' work around their convolutions: bytes to floats, and pooling.

On CPUs, where memory bounds all of them, each is one pass in C (`images.c`), wrapped as a custom operator
with gradients; elsewhere, or without a compiler, PyTorch's functions do the same. Images are channels-last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..operator import Operator
from ..pytorch.stepwise import wants_gradient
from ..untraced import constant
from . import compiling

LANES = 16
"""The number of channels must be a multiple of this, as in `images.c`."""
DEFINES = {torch.float32: "BF16=0", torch.bfloat16: "BF16=1"}
"""How a source is compiled for images of a dtype."""


def scaled(frame: Tensor, dtype: torch.dtype) -> Tensor:
    """Divide uint8 `[N, C, H, W]` by 255."""
    if frame.dtype is not torch.uint8:
        raise ValueError(f"scaled: frame is {frame.dtype}; give torch.uint8")
    if frame.device.type == "cpu" and _in_c(dtype):
        y: Tensor = _scaled(frame, dtype)
        return y
    # bfloat16 holds 0 to 255 exactly.
    return frame.to(dtype=dtype, memory_format=torch.channels_last).div_(255.0)


def standardised(frame: Tensor, affine: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    """Compute (frame - shift) · factor, clipped to ±limit: frame uint8 `[N, C, H, W]`; affine float32
    `[2, H, W, C]`, shift and factor.
    """
    if frame.dtype is not torch.uint8:
        raise ValueError(f"standardised: frame is {frame.dtype}; give torch.uint8")
    if frame.device.type == "cpu" and _in_c(dtype):
        y: Tensor = _standardised(frame, affine, torch.tensor(limit), dtype)
        return y
    shift, factor = affine.permute(0, 3, 1, 2)
    y = ((frame - shift) * factor).clamp(-limit, limit)
    return y.to(dtype=dtype, memory_format=torch.channels_last)


def max_pool(x: Tensor) -> Tensor:
    """Compute `max_pool2d(x, 3, stride=2, padding=1)`; x `[N, C, H, W]`."""
    if not _is_supported(x):
        return F.max_pool2d(x, 3, stride=2, padding=1)
    y: Tensor = _max_pool(x, wants_gradient(x))[0]
    return y


def dense(*images: Tensor) -> tuple[Tensor, ...]:
    """Return images as C reads them: channels-last, without gaps."""
    return tuple(x.contiguous(memory_format=torch.channels_last) for x in images)


def _is_supported(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.shape[1] % LANES == 0 and _in_c(x.dtype)


@constant
def _in_c(dtype: torch.dtype) -> bool:
    return dtype in DEFINES and compiling.unsupported_reason("images.c", DEFINES[dtype]) is None


def _floats(frame: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(frame, dtype=dtype, memory_format=torch.channels_last)


def _fill_scaled(y: Tensor, frame: Tensor, dtype: torch.dtype) -> None:
    N, C, H, W = frame.shape
    _call(dtype, "scale", (N, C, H * W), y, frame.contiguous(), y)


_scaled = Operator("scaled", "frame | dtype:ScalarType", 1, _floats, _fill_scaled)


def _standardised_floats(frame: Tensor, *rest: Any) -> Tensor:
    return _floats(frame, rest[-1])


def _fill_standardised(y: Tensor, frame: Tensor, affine: Tensor, limit: Tensor, dtype: torch.dtype) -> None:
    N, C, H, W = frame.shape
    _call(dtype, "standardise", (N, C, H * W), y, frame.contiguous(), *affine, limit, y)


_standardised = Operator(
    "standardised", "frame affine limit | dtype:ScalarType", 1, _standardised_floats, _fill_standardised
)


def _pooled(x: Tensor, save: bool) -> tuple[Tensor, Tensor]:
    """Allocate y, and for backward each maximum's place in its window, empty unless `save`."""
    N, C, H, W = x.shape
    y = _new(x, N, C, (H + 1) // 2, (W + 1) // 2)
    return y, torch.empty_like(y, dtype=torch.uint8) if save else x.new_empty(0, dtype=torch.uint8)


def _fill_pooled(results: tuple[Tensor, Tensor], x: Tensor, save: bool) -> None:
    (x,) = dense(x)
    _call(x.dtype, "max_pool", _sizes(x), x, x, *results)


def _pooled_from(dy: Tensor, which: Tensor, H: int, W: int) -> Tensor:
    return _new(dy, *dy.shape[:2], H, W)


def _fill_pooled_from(dx: Tensor, dy: Tensor, which: Tensor, H: int, W: int) -> None:
    _call(dy.dtype, "max_pool_backward", _sizes(dx), dx, *dense(dy), which, dx)


def _max_pool_save(ctx: Any, inputs: tuple[Tensor, bool], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.size = inputs[0].shape[2:]
    ctx.save_for_backward(output[1])


def _max_pool_differentiate(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, None]:
    if dy is None:
        return None, None
    return _max_pool_backward(dy, *ctx.saved_tensors, *ctx.size), None


_max_pool_backward = Operator("max_pool_backward", "dy which | H W", 1, _pooled_from, _fill_pooled_from)
_max_pool = Operator(
    "max_pool", "x | save", 2, _pooled, _fill_pooled, _max_pool_save, _max_pool_differentiate
)


def _new(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _sizes(x: Tensor) -> tuple[int, ...]:
    """Return N, H, W, C."""
    N, C, H, W = x.shape
    return N, H, W, C


def _call(dtype: torch.dtype, name: str, sizes: tuple[int, ...], largest: Tensor, *xs: Tensor) -> None:
    compiling.call("images.c", DEFINES[dtype], name, (*sizes, _threads(largest)), *xs)


def _threads(largest: Tensor) -> int:
    """Return how many threads to use: waking another costs as much as a small image."""
    return torch.get_num_threads() if largest.numel() > 1 << 18 else 1
