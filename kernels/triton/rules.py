"""Launches the kernels of fast weights, and says which inputs they take. Importing this imports Triton.

A kernel is passed arguments by its parameters' names: tensors by those in `Shapes`, `W_T` for W after step T,
`dq` for the gradient of q; `q_t`, `q_b` and `q_h` are the strides of q over time, rows and heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from ..custom_ops import KernelSignature
from ..pytorch.stepwise import SPACING
from ..shapes import widest
from . import delta, delta_lstm, gated, generalised, recurrent
from .launch import constants
from .steps import tanh

NamedTensors = Mapping[str, Tensor | None]
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


def forward(kernel: KernelSignature, tensors: NamedTensors) -> None:
    """Fill outputs and checkpoints, except those that are empty."""
    saved = [tensors[name] for name in (*kernel.saved, *kernel.checkpoints)]
    keep = any(x is not None and x.numel() for x in saved)
    _launch(_FORWARD[kernel.name], kernel, {**tensors, "KEEP": keep}, tensors["y"])


def backward(kernel: KernelSignature, tensors: NamedTensors) -> None:
    """Fill the gradients of the inputs. Those of y and of the last states may be None."""
    W: Any = tensors[kernel.states[0]]
    y: Any = tensors.get("y", tensors.get("dv"))  # of the same shape where y itself is not saved
    if y is None:
        y = tensors["du"][..., -1, :]  # type: ignore[index]
    arguments = {f"d{name}": tensors.get(f"d{name}", W.new_empty(0)) for name in kernel.gradients}
    arguments |= tensors
    like = [y, *(tensors[f"d{state}"] for state in kernel.states)]
    for output, x in zip(kernel.differentiable_outputs, like, strict=True):
        if arguments[f"d{output}"] is None and x is not None:
            arguments[f"d{output}"] = torch.zeros_like(x)
    # scratch for the states of one span in every program, which walks back over them
    arguments["buffer"] = W.new_empty(
        *W.shape[:2], SPACING * len(kernel.checkpoints) * kernel.num_writes(tensors), *W.shape[2:]
    )
    _launch(_BACKWARD[kernel.name], kernel, arguments, y)


def _launch(function: Any, kernel: KernelSignature, tensors: Mapping[str, Any], y: Any) -> None:
    """Run a program for each head of each row, with arguments by the names of its parameters."""
    T, B, heads, _ = y.shape
    arguments = {**tensors, **constants(tensors[kernel.states[0]], heads), **kernel.scalars, "T": T}
    arguments |= {"SPACING": SPACING, "ERASES": tensors.get("beta") is not None}
    arguments["WRITES"] = kernel.num_writes(tensors)
    if not arguments["ERASES"] and "v" in tensors:
        arguments["beta"] = tensors["v"][..., 0]  # the sum rules read no strength, but a kernel takes one
    for name in kernel.per_step:
        if name in arguments:
            strides = arguments[name].stride()
            arguments |= zip((f"{name}_t", f"{name}_b", f"{name}_h"), strides, strict=False)
    with torch.cuda.device_of(y):
        function[B, heads](**{name: arguments[name] for name in (*function.arg_names, "num_warps")})


def unsupported_reason(inputs: tuple[Tensor, ...], any_width: bool = False) -> str | None:
    """Return why the kernels cannot take these inputs, which passed `Shapes.check`; None if they can.

    `any_width`: for a rule that keeps no head's matrices in registers.
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
