"""The recurrent delta rule whose forward pass an actor made, as forward_cache.py has it of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..rules import RECURRENT_DELTA
from .forward_cache import computed

assert RECURRENT_DELTA.native is not None
_recurrent: Any = RECURRENT_DELTA.native.operator


def recurrent_delta(
    values: Sequence[Tensor], W_T: Tensor, reset: Tensor, *inputs: Tensor
) -> tuple[Tensor, ...]:
    """Compute the rule of that name from its inputs: y `[T, B, H, V]` and W after the last step.

    `values`: y and what the kernel saves.
    """
    y, *kept = values
    slow_weights_and_W = inputs[4:-1]
    saved = reset, *slow_weights_and_W, *kept, W_T.new_empty(0)  # without checkpoints
    return computed((y, W_T), _gradients, saved, *inputs)


def _gradients(dy: Tensor | None, dW_T: Tensor | None, *saved: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(_recurrent.gradients("native", saved, (dy, dW_T)))
