"""The functions that launch the kernels, and the inputs these take. Importing this imports Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
from torch import Tensor

from ..shapes import widest
from . import delta, delta_lstm, gated, recurrent
from .steps import tanh

INTERPRETED = not isinstance(tanh, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set at import: the kernels then run in Python, slowly, on any device."""
MAX_SIZE = 64
"""Most rows or columns of fast weights: a program holds a head's matrices in registers."""


_FORWARD: dict[str, Callable[..., None]] = {
    "delta": delta.delta_forward,
    "gated": gated.gated_forward,
    "momentum": gated.momentum_forward,
    "delta_rnn": recurrent.delta_rnn_forward,
    "recurrent_delta": recurrent.recurrent_delta_forward,
    "delta_lstm": delta_lstm.delta_lstm_forward,
}
_BACKWARD: dict[str, Callable[..., None]] = {
    "delta": delta.delta_backward,
    "gated": gated.gated_backward,
    "momentum": gated.momentum_backward,
    "delta_rnn": recurrent.delta_rnn_backward,
    "recurrent_delta": recurrent.recurrent_delta_backward,
    "delta_lstm": delta_lstm.delta_lstm_backward,
}


def forward(
    kernel: str,
    per_step: Sequence[Tensor | None],
    others: Sequence[Tensor],
    W: Tensor,
    reset: Tensor,
    outputs: Sequence[Tensor],
    checkpoints: Sequence[Tensor],
    option: Sequence[int],
) -> None:
    """Fill outputs and checkpoints but for those that are empty."""
    _FORWARD[kernel](*per_step, *others, reset, *outputs, *checkpoints, *option)


def backward(
    kernel: str,
    per_step: Sequence[Tensor | None],
    others: Sequence[Tensor],
    outputs: Sequence[Tensor],
    W: Tensor,
    reset: Tensor,
    checkpoints: Sequence[Tensor],
    ends: Sequence[Tensor | None],
    gradients: Sequence[Tensor],
    option: Sequence[int],
) -> None:
    """Fill the gradients, which follow those of y and of the last states, `ends`."""
    _BACKWARD[kernel](*per_step, *others, reset, *outputs, *checkpoints, *ends, *gradients, *option)


def unsupported_reason(inputs: tuple[Tensor, ...]) -> str | None:
    """Return why the kernels cannot take these inputs, which passed `Shapes.check`; None if they can."""
    size = widest(inputs)
    if size > MAX_SIZE:
        return f"the Triton kernels take heads up to {MAX_SIZE} wide, not {size}"
    return unsupported_at_any_width(inputs)


def unsupported_at_any_width(inputs: tuple[Tensor, ...]) -> str | None:
    """Like `unsupported_reason`, for a rule that does not hold a head's matrices in registers."""
    x = inputs[0]
    if x.dtype is not torch.float32:
        return f"the Triton kernels compute in float32, not {x.dtype}"
    device = x.device.type
    if device != "cuda" and not INTERPRETED:
        return f"the Triton kernels need CUDA tensors, not {device} ones; for a trial set TRITON_INTERPRET=1"
    return None
