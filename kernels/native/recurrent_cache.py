"""The recurrent delta rule whose forward pass an actor made, as forward_cache.py has it of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..once import differentiable_once
from ..rules import RECURRENT_DELTA

assert RECURRENT_DELTA.native is not None
_recurrent: Any = RECURRENT_DELTA.native.operator


def recurrent_delta(
    values: Sequence[Tensor], W_T: Tensor, reset: Tensor, *inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the rule of that name from its inputs: y `[T, B, H, V]` and W after the last step."""
    y, W_T = _RecurrentDelta.apply(values, W_T, reset, *inputs)
    return y, W_T


class _RecurrentDelta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Sequence[Tensor], W_T: Tensor, reset: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        y, g, q_used, k_used, beta_used, error = values
        _, _, _, _, *slow, W, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.backend = "native"
        ctx.save_for_backward(reset, *slow, W, g, q_used, k_used, beta_used, error, g.new_empty(0))
        return y.detach(), W_T.detach()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy: Tensor | None, dW_T: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, None, *_recurrent.differentiate(ctx, dy, dW_T)[:-3]
