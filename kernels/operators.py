"""What the kernels of fast weights take and fill, in C and in Triton: a record each."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from .custom_ops import Kernel, Named
from .pytorch.stepwise import sum_of_outer

DELTA = Kernel(
    "delta",
    per_step=("q", "k", "v", "beta"),
    states_and_weights=("W",),
    states=("W",),
    backward_inputs=("q", "k", "v", "beta", "W", "error"),
    gradients=("q", "k", "v", "beta", "W"),
    saved={"error": "v"},
)
SUM = replace(DELTA, saved={"error": "beta"})
"""without β, and so without an error"""
GATED = Kernel(
    "gated",
    per_step=("q", "k", "v", "beta", "decay"),
    states_and_weights=("W",),
    states=("W",),
    backward_inputs=("q", "k", "v", "beta", "decay", "W", "error", "y", "W_T"),
    gradients=("q", "k", "v", "beta", "decay", "W"),
    saved={"error": "v"},
    checkpoints={"kept": "W"},
)
GATED_SUM = replace(GATED, saved={"error": "beta"})
MOMENTUM = Kernel(
    "momentum",
    per_step=("q", "k", "v", "beta", "decay", "momentum"),
    states_and_weights=("W", "C"),
    states=("W", "C"),
    backward_inputs=("q", "k", "v", "beta", "decay", "momentum", "W", "C", "found", "y", "W_T", "C_T"),
    gradients=("q", "k", "v", "beta", "decay", "momentum", "W", "C"),
    saved={"found": "v"},
    checkpoints={"kept": "W", "kept_C": "C"},
)
GENERALISED = Kernel(
    "generalised",
    per_step=("q", "k", "u", "e", "decay"),
    states_and_weights=("W",),
    states=("W",),
    backward_inputs=("q", "k", "e", "decay", "W", "error"),
    gradients=("q", "k", "u", "e", "decay", "W"),
    y="last u",
    saved={"error": "u"},
    checkpoints={"kept": "W"},
)
DELTA_RNN = Kernel(
    "delta_rnn",
    per_step=("z", "k", "v", "beta"),
    states_and_weights=("R", "y0"),
    states=("R",),
    backward_inputs=("k", "beta", "R", "error", "p"),
    gradients=("z", "k", "v", "beta", "R", "y0"),
    saved={"error": "v", "p": "v"},
    checkpoints={"kept": "R"},
)
DELTA_LSTM = {
    variant: Kernel(
        "delta_lstm",
        per_step=("z", "k", "v", "beta"),
        states_and_weights=("R", "y0", "c0"),
        states=("R", "c0"),
        backward_inputs=("k", "beta", "R", "y", "error", "p", "cells", "gates"),
        gradients=("z", "k", "v", "beta", "R", "y0", "c0"),
        y="T y0",
        saved={"error": "z", "p": "T y0", "cells": "T y0", "gates": "z"},
        checkpoints={"kept": "R"},
        numbers={"VARIANT": number},
    )
    for number, variant in enumerate("ABCD")
}
"""`cells`: c before each step; `gates`: i, u and o"""


def _slow_gradients(needed: Named, grads: Named) -> dict[str, Tensor]:
    """Return the gradients of RDN's recurrent weights: sums over steps and rows of `g dxᵀ`.

    dx is the gradient of the input that each was added to, which backward fills anyway.
    """
    found = {f"R{name}": sum_of_outer(needed["g"], grads[name]) for name in "qkv"}
    return found | {"rb": sum_of_outer(needed["g"], grads["beta"].unsqueeze(-1)).squeeze(-1)}


RECURRENT_DELTA = Kernel(
    "recurrent_delta",
    per_step=("q", "k", "v", "beta"),
    states_and_weights=("Rq", "Rk", "Rv", "rb", "W", "y0"),
    states=("W",),
    backward_inputs=("Rq", "Rk", "Rv", "rb", "W", "g", "q_used", "k_used", "beta_used", "error"),
    gradients=("q", "k", "v", "beta", "W", "y0"),
    saved={"g": "v", "q_used": "q", "k_used": "k", "beta_used": "beta", "error": "v"},
    checkpoints={"kept": "W"},
    derived_gradients=_slow_gradients,
)
