"""The signatures of the kernels of fast weights, the same in C and in Triton."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from .custom_ops import KernelSignature, Named
from .pytorch.stepwise import sum_of_outer

DELTA = KernelSignature(
    "delta",
    per_step=("q", "k", "v", "beta"),
    states_and_weights=("W",),
    states=("W",),
    backward_inputs=("q", "k", "v", "beta", "W", "error"),
    gradients=("q", "k", "v", "beta", "W"),
    saved={"error": "v"},
)
SUM = replace(DELTA, saved={"error": "beta"})
"""`error` is shaped as β, which this rule lacks: nothing is saved"""
GATED = KernelSignature(
    "gated",
    per_step=("q", "k", "v", "beta", "decay"),
    states_and_weights=("W",),
    states=("W",),
    backward_inputs=("q", "k", "v", "beta", "decay", "W", "error", "y", "W_T"),
    gradients=("q", "k", "v", "beta", "decay", "W"),
    saved={"error": "v"},
    checkpoints={"checkpoints": "W"},
)
GATED_SUM = replace(GATED, saved={"error": "beta"})
"""as `SUM`"""
MOMENTUM = KernelSignature(
    "momentum",
    per_step=("q", "k", "v", "beta", "decay", "momentum"),
    states_and_weights=("W", "C"),
    states=("W", "C"),
    backward_inputs=("q", "k", "v", "beta", "decay", "momentum", "W", "C", "found", "y", "W_T", "C_T"),
    gradients=("q", "k", "v", "beta", "decay", "momentum", "W", "C"),
    saved={"found": "v"},
    checkpoints={"checkpoints": "W", "checkpoints_C": "C"},
)
"""`found`: λ W k"""
GENERALISED = KernelSignature(
    "generalised",
    per_step=("q", "k", "u", "e", "decay"),
    states_and_weights=("W",),
    states=("W",),
    backward_inputs=("q", "k", "e", "decay", "W", "error"),
    gradients=("q", "k", "u", "e", "decay", "W"),
    y="last u",
    saved={"error": "u"},
    checkpoints={"checkpoints": "W"},
)
DELTA_RNN = KernelSignature(
    "delta_rnn",
    per_step=("z", "k", "v", "beta"),
    states_and_weights=("R", "y0"),
    states=("R",),
    backward_inputs=("k", "beta", "R", "error", "p"),
    gradients=("z", "k", "v", "beta", "R", "y0"),
    saved={"error": "v", "p": "v"},
    checkpoints={"checkpoints": "R"},
)
DELTA_LSTM = {
    variant: KernelSignature(
        "delta_lstm",
        per_step=("z", "k", "v", "beta"),
        states_and_weights=("R", "y0", "c0"),
        states=("R", "c0"),
        backward_inputs=("k", "beta", "R", "y", "error", "p", "cells", "gates"),
        gradients=("z", "k", "v", "beta", "R", "y0", "c0"),
        y="T y0",
        saved={"error": "z", "p": "T y0", "cells": "T y0", "gates": "z"},
        checkpoints={"checkpoints": "R"},
        scalars={"VARIANT": number},
    )
    for number, variant in enumerate("ABCD")
}
"""`cells`: c before each step; `gates`: i, u and o"""


def _slow_gradients(needed: Named, grads: Named) -> dict[str, Tensor]:
    """Return the gradients of RDN's recurrent weights: sums over steps and rows of `g dxᵀ`.

    dx is the gradient of the input that each was added to, which backward fills anyway.
    """
    gradients = {f"R{name}": sum_of_outer(needed["g"], grads[name]) for name in "qkv"}
    return gradients | {"rb": sum_of_outer(needed["g"], grads["beta"].unsqueeze(-1)).squeeze(-1)}


RECURRENT_DELTA = KernelSignature(
    "recurrent_delta",
    per_step=("q", "k", "v", "beta"),
    states_and_weights=("Rq", "Rk", "Rv", "rb", "W", "y0"),
    states=("W",),
    backward_inputs=("Rq", "Rk", "Rv", "rb", "W", "g", "q_used", "k_used", "beta_used", "error"),
    gradients=("q", "k", "v", "beta", "W", "y0"),
    saved={"g": "v", "q_used": "q", "k_used": "k", "beta_used": "beta", "error": "v"},
    checkpoints={"checkpoints": "W"},
    derived_gradients=_slow_gradients,
)
