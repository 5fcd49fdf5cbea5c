"""Launches the kernels of fast weights, and says which inputs they take. Importing this imports Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from ..custom_ops import Kernel
from ..pytorch.stepwise import SPACING
from ..shapes import widest
from . import delta, delta_lstm, gated, generalised, recurrent
from .launch import constants
from .steps import tanh

Given = Mapping[str, Tensor | None]
INTERPRETED = not isinstance(tanh, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set at import: the kernels then run in Python, slowly, on any device."""
MAX_SIZE = 64
"""Most rows or columns of fast weights: a program holds a head's matrices in registers."""

_FORWARD: dict[str, Any] = {
    "delta": delta.forward_kernel,
    "gated": gated.gated_forward_kernel,
    "momentum": gated.momentum_forward_kernel,
    "generalised": generalised.forward_kernel,
    "delta_rnn": recurrent.delta_rnn_forward_kernel,
    "recurrent_delta": recurrent.recurrent_delta_forward_kernel,
    "delta_lstm": delta_lstm.forward_kernel,
}
_BACKWARD: dict[str, Any] = {
    "delta": delta.backward_kernel,
    "gated": gated.gated_backward_kernel,
    "momentum": gated.momentum_backward_kernel,
    "generalised": generalised.backward_kernel,
    "delta_rnn": recurrent.delta_rnn_backward_kernel,
    "recurrent_delta": recurrent.recurrent_delta_backward_kernel,
    "delta_lstm": delta_lstm.backward_kernel,
}


def forward(kernel: Kernel, given: Given) -> None:
    """Fill outputs and checkpoints but for those that are empty."""
    saved = [given[name] for name in (*kernel.saved, *kernel.checkpoints)]
    keep = any(x is not None and x.numel() for x in saved)
    _launch(_FORWARD[kernel.name], kernel, {**given, "KEEP": keep}, given["y"])


def backward(kernel: Kernel, given: Given) -> None:
    """Fill the gradients of inputs. Those of y and of the last states may be None."""
    W: Any = given[kernel.states[0]]
    y: Any = given.get("y", given.get("dv"))  # of the same shape where y itself is not saved
    if y is None:
        y = given["du"][..., -1, :]  # type: ignore[index]
    known = {f"d{name}": given.get(f"d{name}", W.new_empty(0)) for name in kernel.gradients}
    known |= given
    for end, like in zip(kernel.ends, [y, *(given[f"d{state}"] for state in kernel.states)], strict=True):
        if known[f"d{end}"] is None and like is not None:
            known[f"d{end}"] = torch.zeros_like(like)
    # room for the states of one span in every program, which walks back over them
    known["buffer"] = W.new_empty(
        *W.shape[:2], SPACING * len(kernel.checkpoints) * _writes(kernel, given), *W.shape[2:]
    )
    _launch(_BACKWARD[kernel.name], kernel, known, y)


def _launch(function: Any, kernel: Kernel, given: Mapping[str, Any], y: Any) -> None:
    """Run a program for each head of each row; the names of its parameters say what each is handed."""
    T, B, heads, _ = y.shape
    known = {**given, **constants(given[kernel.states[0]], heads), **kernel.numbers, "T": T}
    known |= {"SPACING": SPACING, "ERASES": given.get("beta") is not None}
    known["WRITES"] = _writes(kernel, given)
    if not known["ERASES"] and "v" in given:
        known["beta"] = given["v"][..., 0]  # the sum rules read no strength, but a kernel takes one
    for name in kernel.per_step:
        if name in known:
            known |= zip((f"{name}_t", f"{name}_b", f"{name}_h"), known[name].stride(), strict=False)
    with torch.cuda.device_of(y):
        function[B, heads](**{name: known[name] for name in (*function.arg_names, "num_warps")})


def _writes(kernel: Kernel, given: Mapping[str, Any]) -> int:
    """Return how many writes a step has: one, but where keys are `[T, B, H, S, K]`."""
    return next((x.shape[3] for x in map(given.get, kernel.per_step) if x is not None and x.dim() == 5), 1)


def unsupported_reason(inputs: tuple[Tensor, ...], any_width: bool = False) -> str | None:
    """Return why the kernels cannot take these inputs, which passed `Shapes.check`; None if they can.

    A rule takes `any_width` if it does not hold a head's matrices in registers.
    """
    size = 0 if any_width else widest(inputs)
    if size > MAX_SIZE:
        return f"the Triton kernels take heads up to {MAX_SIZE} wide, not {size}"
    x = inputs[0]
    if x.dtype is not torch.float32:
        return f"the Triton kernels compute in float32, not {x.dtype}"
    device = x.device.type
    if device != "cuda" and not INTERPRETED:
        return f"the Triton kernels need CUDA tensors, not {device} ones; for a trial set TRITON_INTERPRET=1"
    return None
