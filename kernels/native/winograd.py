"""3x3 convolutions of stride 1 and padding 1, and residual blocks of two, with fewer multiplications.

oneDNN runs the direct product of a 3x3 convolution at a CPU's peak. Winograd's minimal filtering (Winograd
1980; Lavin and Gray 2015) computes 4 x 4 outputs at a time from 36 products instead of 144. On CPUs, for
channels in multiples of 16, `winograd.c` does so in float32, wrapped as custom operators with gradients;
elsewhere PyTorch's functions do the same. Under autocast images are bfloat16, and nothing else is. A frame's
results do not depend on those beside it, nor on the number of threads. Images are channels-last.

A pixel that is not finite makes those of its tile nan, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..operator import Operator
from ..untraced import constant
from . import compiling
from .images import DEFINES, dense
from .weight_transforms import cached_transform

TILE, POINTS = 4, 36
"""Outputs of a tile's side, and products for each of its pairs of channels, as in `winograd.c`."""
LANES = 16
"""The numbers of channels must be multiples of this, as in `winograd.c`."""
MAX_CHANNELS = 64
"""A block of transformed tiles lies on the stack."""
CHUNK = 1 << 18
"""Numbers of an image tensor that go through a layer's passes before the next do, to stay in the caches."""
CACHE = 1 << 22
"""Bytes of an image tensor that is likely to be in the caches; larger ones are prefetched."""
MAX_PARTS = 8
"""Sums that make up a weight's gradient, and so threads that compute it."""


def conv3x3(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `conv2d(x, weight, bias, padding=1)`: x `[N, C, H, W]`, weight `[D, C, 3, 3]`, bias `[D]`."""
    _check("conv3x3", x, [(weight, bias)])
    if not _is_supported(x, weight, bias):
        return F.conv2d(x, weight, bias, padding=1)
    y: Tensor = _conv3x3(x, weight, bias)
    return y


def residual_block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Compute `x + conv(relu(conv(relu(x), w1, b1)), w2, b2)`, the convolutions as in `conv3x3`."""
    _check("residual_block", x, [(w1, b1), (w2, b2)])
    if w2.shape[0] != x.shape[1]:
        raise ValueError(
            f"residual_block: w2 is {list(w2.shape)}; give {x.shape[1]} outputs, as x has channels"
        )
    inputs = x, w1, b1, w2, b2
    if not _is_supported(*inputs):
        # In place where no gradient needs the overwritten value, to spare memory traffic.
        h = F.relu(F.conv2d(F.relu(x), w1, b1, padding=1), inplace=True)
        return F.conv2d(h, w2, b2, padding=1).add_(x)
    y: Tensor = _residual_block(*inputs)[0]
    return y


def _check(name: str, x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> None:
    if x.dim() != 4:
        raise ValueError(f"{name}: x is {list(x.shape)}; give [N, C, H, W]")
    channels = x.shape[1]
    for weight, bias in layers:
        expected = [len(weight), channels, 3, 3]
        if list(weight.shape) != expected or list(bias.shape) != expected[:1]:
            actual = f"weight is {list(weight.shape)} and bias {list(bias.shape)}"
            raise ValueError(f"{name}: {actual}; give {expected} and {expected[:1]}")
        channels = len(weight)


def _is_supported(x: Tensor, *weights: Tensor) -> bool:
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else torch.float32
    if x.device.type != "cpu" or x.dtype is not dtype or not _fits(x.shape[1]):
        return False
    usual = all(w.device.type == "cpu" and w.dtype is torch.float32 and _fits(len(w)) for w in weights)
    return usual and _in_c(x.dtype)


def _fits(channels: int) -> bool:
    return channels % LANES == 0 and channels <= MAX_CHANNELS


@constant
def _in_c(dtype: torch.dtype) -> bool:
    # Where tiles of bfloat16 are multiplied at once (AMX), direct products are faster.
    if dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return False
    return dtype in DEFINES and compiling.unsupported_reason("winograd.c", DEFINES[dtype]) is None


def _conv3x3_results(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _new(x, weight.shape[0])


def _fill_conv3x3(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
    (x,) = dense(x)
    _convolve(x, y, _transformed(weight, x.dtype), bias)


def _conv3x3_gradients(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return _new(x, x.shape[1]), *_new_weight(weight)


def _fill_conv3x3_gradients(gradients: tuple[Tensor, ...], dy: Tensor, x: Tensor, weight: Tensor) -> None:
    dx, *of_weight = gradients
    dy, x = dense(dy, x)
    sums, transformed = _sums(x, len(weight)), _transformed(weight, x.dtype, transposed=True)
    for at in _chunks(x, dy):
        _convolve(dy[at], dx[at], transformed)
        _add_weight_gradient(sums, x[at], dy[at])
    _fill_weight_gradient(sums, *of_weight)


def _conv3x3_save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _conv3x3_differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _conv3x3_backward(dy, *ctx.saved_tensors)
    return gradients


_conv3x3_backward = Operator(
    "conv3x3_backward", "dy x weight", 3, _conv3x3_gradients, _fill_conv3x3_gradients
)
_conv3x3 = Operator(
    "conv3x3", "x weight bias", 1, _conv3x3_results, _fill_conv3x3, _conv3x3_save, _conv3x3_differentiate
)


def _residual_block_results(x: Tensor, w1: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate y, and for backward the second convolution's input."""
    return _new(x, x.shape[1]), _new(x, w1.shape[0])


def _fill_residual_block(
    results: tuple[Tensor, Tensor], x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> None:
    (x,), (y, h) = dense(x), results
    first, second = _transformed(w1, x.dtype), _transformed(w2, x.dtype)
    for at in _chunks(x, h):
        _convolve(x[at], h[at], first, b1, rectify=True, relu=True)
        _convolve(h[at], y[at], second, b2, add=x[at])


def _residual_block_gradients(dy: Tensor, x: Tensor, h: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, ...]:
    return _new(x, x.shape[1]), *_new_weight(w1), *_new_weight(w2)


def _fill_residual_block_gradients(
    gradients: tuple[Tensor, ...], dy: Tensor, x: Tensor, h: Tensor, w1: Tensor, w2: Tensor
) -> None:
    dx, dw1, db1, dw2, db2 = gradients
    (dy, x), dh = dense(dy, x), torch.empty_like(h)
    first, second = (_transformed(w, x.dtype, transposed=True) for w in (w1, w2))
    sums1, sums2 = _sums(x, len(w1)), _sums(h, len(w2))
    for at in _chunks(x, h):
        _convolve(dy[at], dh[at], second, mask=h[at])
        _convolve(dh[at], dx[at], first, mask=x[at], add=dy[at])
        _add_weight_gradient(sums2, h[at], dy[at])
        _add_weight_gradient(sums1, x[at], dh[at], rectify=True)
    _fill_weight_gradient(sums1, dw1, db1)
    _fill_weight_gradient(sums2, dw2, db2)


def _residual_block_save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    x, w1, _, w2, _ = inputs
    ctx.save_for_backward(x, output[1], w1, w2)


def _residual_block_differentiate(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 5
    gradients: tuple[Tensor, ...] = _residual_block_backward(dy, *ctx.saved_tensors)
    return gradients


_residual_block_backward = Operator(
    "residual_block_backward", "dy x h w1 w2", 5, _residual_block_gradients, _fill_residual_block_gradients
)
_residual_block = Operator(
    "residual_block",
    "x w1 b1 w2 b2",
    2,
    _residual_block_results,
    _fill_residual_block,
    _residual_block_save,
    _residual_block_differentiate,
)


def _chunks(*images: Tensor) -> list[slice]:
    """Return frames of images that all have the same number, some at a time."""
    frames = max(1, CHUNK * len(images[0]) // max(1, *(x.numel() for x in images)))
    return [slice(i, i + frames) for i in range(0, len(images[0]), frames)]


def _transformed(weight: Tensor, dtype: torch.dtype, transposed: bool = False) -> Tensor:
    """Transform weights for `_convolve` of images of a dtype; if `transposed`, for the gradient of x from
    that of y."""
    outputs, inputs = weight.shape[:2]
    if transposed:
        outputs, inputs = inputs, outputs

    def transform() -> Tensor:
        transformed = weight.new_empty(POINTS * inputs * outputs)
        _call(dtype, "transform_weights", (inputs, outputs, transposed), *dense(weight), transformed)
        return transformed

    return cached_transform(weight, ("winograd", dtype, transposed), transform)


def _convolve(
    x: Tensor,
    y: Tensor,
    transformed: Tensor,
    bias: Tensor | None = None,
    *,
    rectify: bool = False,
    relu: bool = False,
    mask: Tensor | None = None,
    add: Tensor | None = None,
) -> None:
    """Convolve x, rectified first if `rectify`, and add the bias; then rectify if `relu`, set to zero where
    `mask <= 0`, and add `add`. Images are channels-last.
    """
    N, inputs, H, W = x.shape
    outputs = y.shape[1]
    if bias is not None:
        bias = bias.contiguous()
    distant = x.untyped_storage().nbytes() > CACHE
    sizes = (N, H, W, inputs, outputs, rectify, relu, distant, _threads(x.numel() * outputs))
    _call(x.dtype, "convolve", sizes, x, transformed, bias, mask, add, y)


def _sums(x: Tensor, outputs: int) -> Tensor:
    """Return zeros to which `_add_weight_gradient` adds: a row for each of several parts of x's tiles."""
    N, inputs, H, W = x.shape
    tiles = N * -(-H // TILE) * -(-W // TILE)
    parts = min(MAX_PARTS, 1 << (tiles >> 10).bit_length())  # each costs as much as some fifty tiles
    return torch.zeros(parts, (POINTS * inputs + 1) * outputs, dtype=torch.float32, device="cpu")


def _add_weight_gradient(sums: Tensor, x: Tensor, dy: Tensor, rectify: bool = False) -> None:
    """Add what the gradients of weight and bias are made of; x is rectified first if `rectify`."""
    N, inputs, H, W = x.shape
    outputs, parts = dy.shape[1], len(sums)
    sizes = (N, H, W, inputs, outputs, rectify, parts, min(parts, _threads(x.numel() * outputs)))
    _call(x.dtype, "add_weight_gradient", sizes, x, dy, sums)


def _fill_weight_gradient(sums: Tensor, dw: Tensor, db: Tensor) -> None:
    """Fill the gradients of weight and bias from all sums."""
    outputs, inputs = dw.shape[:2]
    _call(dw.dtype, "weight_gradient", (inputs, outputs, len(sums)), sums, dw, db)


def _call(dtype: torch.dtype, name: str, sizes: tuple[int, ...], *tensors: Tensor | None) -> None:
    compiling.call("winograd.c", DEFINES[dtype], name, sizes, *tensors)


def _threads(work: int) -> int:
    """Return how many threads to use: waking another costs as much as a small image."""
    return torch.get_num_threads() if work > 1 << 20 else 1


def _new(x: Tensor, channels: int) -> Tensor:
    shape = (x.shape[0], channels, *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _new_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    dw = torch.empty_like(weight, memory_format=torch.channels_last)
    return dw, dw.new_empty(len(weight))
