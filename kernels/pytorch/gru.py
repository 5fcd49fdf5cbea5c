"""The GRU as a loop with a hand-written backward, as the LSTM's in `stepwise.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..once import differentiable_once
from ..precision import without_autocast
from .stepwise import Resets, wants_gradient


def gru(gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Equals `reference.gru` to rounding."""
    inputs = (gates, weight, bias, h0)
    if not wants_gradient(*inputs):
        return reference.gru(*inputs, reset)  # the loop below only saves time in backward
    h = _GRU.apply(*inputs, reset)
    return h, h[-1]


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor) -> Tensor:
        T, (B, N) = len(gates), h0.shape
        resets = Resets(reset)
        outputs, hs, on_n, n = (
            h0.new_empty(T, B, N) for _ in range(4)
        )  # hs: before each step, after its reset
        both = h0.new_empty(T, B, 2 * N)  # r, z
        h = h0
        for t in range(T):
            before = hs[t].copy_(h)
            resets.forget_(t, before)
            recurrent = torch.addmm(bias, before, weight.mT)
            torch.add(gates[t, :, : 2 * N], recurrent[:, : 2 * N], out=both[t]).sigmoid_()
            on_n[t] = recurrent[:, 2 * N :]
            r, z = both[t].chunk(2, -1)
            torch.addcmul(gates[t, :, 2 * N :], r, on_n[t], out=n[t]).tanh_()
            h = torch.lerp(n[t], before, z, out=outputs[t])
        ctx.resets = resets
        ctx.save_for_backward(weight, both, n, on_n, hs)
        return outputs

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dH: Tensor) -> tuple[Tensor | None, ...]:
        weight, both, n, on_n, hs = ctx.saved_tensors
        r, z = both.chunk(2, -1)
        # A gate's gradient is that of h times a factor; factors of all steps at once.
        to_n = (1 - z) * (1 - n * n)
        to_z, to_r, to_on_n = (hs - n) * z * (1 - z), to_n * on_n * r * (1 - r), to_n * r
        recurrent = torch.cat((to_r, to_z, to_on_n), -1)
        by_gate = recurrent.unflatten(-1, (3, -1))
        dh, dn = torch.zeros_like(hs[0]), torch.empty_like(hs)
        for t in reversed(range(len(hs))):
            dh += dH[t]
            torch.mul(dh, to_n[t], out=dn[t])
            by_gate[t] *= dh.unsqueeze(1)
            dh = torch.addmm(dh * z[t], recurrent[t], weight)
            ctx.resets.forget_(t, dh)
        dweight = recurrent.flatten(0, 1).mT @ hs.flatten(0, 1)
        dgates = torch.cat((recurrent[..., : -n.shape[-1]], dn), -1)
        return dgates, dweight, recurrent.sum((0, 1)), dh, None
