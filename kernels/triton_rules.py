"""The rules in Triton. Importing this imports Triton; `dispatch` does so when it first needs them."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .triton_delta import delta_backward, delta_forward
from .triton_lstm import lstm
from .triton_recurrent import (
    delta_rnn_backward,
    delta_rnn_forward,
    recurrent_delta_backward,
    recurrent_delta_forward,
)
from .triton_steps import tanh

__all__ = [
    "delta_backward",
    "delta_forward",
    "delta_rnn_backward",
    "delta_rnn_forward",
    "lstm",
    "problem",
    "recurrent_delta_backward",
    "recurrent_delta_forward",
]

INTERPRETED = not isinstance(tanh, triton.JITFunction)
"""TRITON_INTERPRET=1 was set at import: the kernels run in Python, slowly, on any device."""
MAX_SIZE = 64
"""Rows and columns of fast weights: a program holds a head's matrices in registers."""


def problem(rule: str, inputs: tuple[Tensor, ...]) -> str | None:
    """Why the kernels cannot take these inputs, reset last; None if they can."""
    *floats, _ = inputs
    dtypes = {x.dtype for x in floats} - {torch.float32}
    if dtypes:
        return f"the Triton kernels compute in float32, not {dtypes.pop()}"
    widest = 0 if rule == "lstm" else max(size for x in floats if x.dim() == 4 for size in x.shape[3:])
    if widest > MAX_SIZE:
        return f"the Triton kernels take heads up to {MAX_SIZE} wide, not {widest}"
    device = floats[0].device.type
    if device != "cuda" and not INTERPRETED:
        return f"the Triton kernels need CUDA tensors, not {device} ones; for a trial set TRITON_INTERPRET=1"
    return None
