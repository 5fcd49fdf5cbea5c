"""The optimizers' steps on a CPU in one pass over memory, where torch's operators take ten."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import compiling

_SOURCE = "optimizers.c"
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


def rmsprop(
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
        _call("rmsprop", settings, p, g, s)


def adam(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    counts: Sequence[int],
    rate: float,
    betas: tuple[float, float],
    eps: float,
    scale: float,
) -> None:
    """Compute in place `m = β1 m + (1 - β1) g`, `s = β2 s + (1 - β2) g²` and
    `p -= rate / (1 - β1^t) m / (√s / √(1 - β2^t) + ε)`; g is `scale` times the gradient, t are the counts.
    """
    (b1, b2) = betas
    for p, g, m, s, t in zip(parameters, gradients, means, squares, counts, strict=True):
        corrected = -rate / (1 - b1**t), (1 - b2**t) ** 0.5
        _call("adam", torch.tensor((b1, 1 - b1, b2, 1 - b2, eps, *corrected, scale)), p, g, m, s)


def _call(name: str, settings: Tensor, parameter: Tensor, gradient: Tensor, *moments: Tensor) -> None:
    size = parameter.numel()
    sizes = (torch.get_num_threads() if size >= _MIN_PARALLEL else 1), size
    compiling.call(_SOURCE, None, name, sizes, settings, parameter, gradient, *moments)
    # Caches and autograd detect changed weights by their versions.
    torch.autograd.graph.increment_version((parameter, *moments))


def _are_alike(*xs: Tensor) -> bool:
    return any(all(x.is_contiguous(memory_format=format) for x in xs) for format in _FORMATS)
