"""The functions that launch the kernels, and the inputs these take. Importing this imports Triton."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..shapes import widest
from .delta import delta_backward, delta_forward
from .gated import gated_backward, gated_forward, momentum_backward, momentum_forward
from .recurrent import (
    delta_rnn_backward,
    delta_rnn_forward,
    recurrent_delta_backward,
    recurrent_delta_forward,
)
from .steps import tanh

__all__ = [
    "delta_backward",
    "delta_forward",
    "delta_rnn_backward",
    "delta_rnn_forward",
    "gated_backward",
    "gated_forward",
    "momentum_backward",
    "momentum_forward",
    "problem",
    "problem_of_any_width",
    "recurrent_delta_backward",
    "recurrent_delta_forward",
]

INTERPRETED = not isinstance(tanh, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set at import: the kernels then run in Python, slowly, on any device."""
MAX_SIZE = 64
"""Most rows or columns of fast weights: a program holds a head's matrices in registers."""


def problem(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why the kernels cannot take these inputs, which passed `Shapes.check`; None if they can."""
    size = widest(inputs)
    if size > MAX_SIZE:
        return f"the Triton kernels take heads up to {MAX_SIZE} wide, not {size}"
    return problem_of_any_width(inputs)


def problem_of_any_width(inputs: tuple[Tensor, ...]) -> str | None:
    """Do as `problem`, for a rule that does not hold a head's matrices in registers."""
    x = inputs[0]
    if x.dtype is not torch.float32:
        return f"the Triton kernels compute in float32, not {x.dtype}"
    device = x.device.type
    if device != "cuda" and not INTERPRETED:
        return f"the Triton kernels need CUDA tensors, not {device} ones; for a trial set TRITON_INTERPRET=1"
    return None
