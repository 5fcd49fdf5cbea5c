"""The recurrent delta rule with its forward pass cached by an actor, like the layers of forward_cache.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..rules import RECURRENT_DELTA
from .forward_cache import with_gradient

assert RECURRENT_DELTA.native is not None
_recurrent: Any = RECURRENT_DELTA.native.operator


def cached_recurrent_delta(
    values: Sequence[Tensor], W_T: Tensor, reset: Tensor, *inputs: Tensor
) -> tuple[Tensor, ...]:
    """Return y `[T, B, H, V]` and W_T `[B, H, V, K]`, computed before by the rule, with its gradients.

    `values`: y and the tensors that the kernel saves for backward.
    """
    y, *saved_by_kernel = values
    slow_weights_and_W = inputs[4:-1]
    saved = reset, *slow_weights_and_W, *saved_by_kernel, W_T.new_empty(0)  # without checkpoints
    return with_gradient((y, W_T), _gradients, saved, *inputs)


def _gradients(dy: Tensor | None, dW_T: Tensor | None, *saved: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(_recurrent.gradients("native", saved, (dy, dW_T)))
