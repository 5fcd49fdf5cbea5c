"""RMSProp's step on a CPU in one pass over memory, where torch's operators take ten."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import compiling

_SOURCE = "rmsprop.c"
_FORMATS = torch.contiguous_format, torch.channels_last
_MIN_PARALLEL = 1 << 16
"""Minimum numbers in a tensor for more than one thread."""


def is_supported(*several: Sequence[Tensor]) -> bool:
    """Return whether C supports these lists of tensors: of equal length, dense, on a CPU, in float32, and the
    i-th ones in one memory format."""
    if compiling.is_watched():
        return False
    readable = all(x.is_cpu and x.dtype is torch.float32 for xs in several for x in xs)
    return readable and all(map(_are_alike, *several)) and compiling.unsupported_reason(_SOURCE) is None


def step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    squares: Sequence[Tensor],
    rate: float,
    alpha: float,
    eps: float,
    scale: float,
) -> None:
    """Compute in place `s = α s + (1 - α) g²` and `p -= rate g / (√s + ε)`; g is `scale` times the gradient.

    Rounded as in torch's RMSprop, except for the square root, which torch may take from MKL.
    """
    settings = torch.tensor((alpha, 1 - alpha, eps, -rate, scale))
    for p, g, s in zip(parameters, gradients, squares, strict=True):
        sizes = (torch.get_num_threads() if p.numel() >= _MIN_PARALLEL else 1), p.numel()
        compiling.call(_SOURCE, None, "step", sizes, settings, p, g, s)
    # Caches and autograd detect changed weights by their versions.
    torch.autograd.graph.increment_version((*parameters, *squares))


def _are_alike(*xs: Tensor) -> bool:
    return any(all(x.is_contiguous(memory_format=format) for x in xs) for format in _FORMATS)
