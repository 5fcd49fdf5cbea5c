"""The Delta LSTM: writes in chunk form, as the Delta RNN's in `chunked.py`; reads and gates in a loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..once import differentiable_once
from ..precision import without_autocast
from .chunked import (
    Masks,
    _delta_backward,
    _fold,
    _mark_broken,
    _masks,
    _Reads,
    _set_aside_broken,
    _unfold,
    _write,
    _Writes,
)
from .stepwise import Resets, softmax_backward


def delta_lstm(variant: str, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equals `reference.delta_lstm` to rounding."""
    z, k, v, beta, R, y0, c0, reset = inputs
    R, broken = _set_aside_broken(R)
    masks = _masks(reset, R.shape[1], R.dtype)
    y, R, c = _DeltaLSTM.apply(variant, masks, z, k, v, beta.unsqueeze(-1), R, y0, c0, reset)
    if broken is not None:
        alive = (reset.cumsum(0) == 0)[:, :, None, None]
        heads = broken.unflatten(1, (-1, 3)).any(2).squeeze(-1)
        y = torch.where(heads & alive, torch.nan, y)
        c = torch.where(heads & alive[-1], torch.nan, c)
        _, R = _mark_broken(y.repeat_interleave(3, 2), R, reset, broken)
    return y, R, y[-1], c


class _DeltaLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, variant: str, masks: Masks, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, k, v, beta, R, y0, c0, reset = inputs
        writes, R_T = _write(_fold(k), _fold(v), _fold(beta), R.flatten(0, 1), masks)
        reads, resets = _Reads(writes.starts.mT, writes.K, writes.U, masks, len(z)), Resets(reset)
        rows = z.flatten(1, 2).unsqueeze(2)  # [T, 3 N, 1, V]: rows times matrices
        shape = len(z), *y0.flatten(0, 1).shape
        p, cells, y = (z.new_empty(shape) for _ in range(3))  # before each step: read with, and c; after it
        gates = z.new_empty(*shape[:2], 3, shape[2])  # i, u, o
        before, c = y0.flatten(0, 1), c0.flatten(0, 1)
        for t in range(len(z)):
            before, cells[t] = resets.forget(t, before), resets.forget(t, c)
            p[t] = before if variant == "A" else before.softmax(-1)
            read = p[t].repeat_interleave(3, 0).unsqueeze(1)
            gates[t] = torch.baddbmm(rows[t], *reads.factors(t, read)).view_as(gates[t])
            i, u, o = gates[t].unbind(1)
            i.sigmoid_(), o.sigmoid_()
            if variant != "D":
                u.sigmoid_()
            c = torch.lerp(cells[t], u, i)
            before = torch.mul(c, o, out=y[t])
            if variant == "A":
                before = torch.softmax(before, -1, out=y[t])
            elif variant == "C":
                before = y[t].add_(rows[t].view_as(gates[t])[:, 1])
        ctx.variant = variant
        ctx.save_for_backward(p, cells, gates, y, reset, R, y0, *writes, *masks)
        return y.view(len(z), *y0.shape), R_T.view_as(R), c.view_as(c0)

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dY: Tensor, dR: Tensor, dC: Tensor) -> tuple[Tensor | None, ...]:
        p, cells, gates, y, reset, R, y0, *rest = ctx.saved_tensors
        writes, masks = _Writes(*rest[:8]), Masks(*rest[8:])
        reads, resets = _Reads(writes.starts, writes.U, writes.K, masks, len(p)), Resets(reset)
        rows, dgates = dY.flatten(1, 2), torch.empty_like(gates)
        dz = dgates if ctx.variant != "C" else torch.empty_like(gates)
        dy, dc = torch.zeros_like(p[0]), dC.flatten(0, 1)
        for t in reversed(range(len(p))):
            dy = rows[t] + dy
            dh = softmax_backward(dy, y[t]) if ctx.variant == "A" else dy
            i, u, o = gates[t].unbind(1)
            c = torch.lerp(cells[t], u, i)
            dc = dc + dh * o
            du = dc * i
            dgates[t, :, 0] = dc * (u - cells[t]) * i * (1 - i)
            dgates[t, :, 1] = du if ctx.variant == "D" else du * u * (1 - u)
            dgates[t, :, 2] = dh * c * o * (1 - o)
            if ctx.variant == "C":
                dz[t] = dgates[t]
                dz[t, :, 1] += dy
            back = reads.factors(t, dgates[t].view(-1, 1, p.shape[-1]))
            dp = torch.bmm(*back).view_as(gates[t]).sum(1)
            dp = dp if ctx.variant == "A" else softmax_backward(dp, p[t])
            dy, dc = resets.forget(t, dp), resets.forget(t, dc * (1 - i))
        T, (B, H, V) = len(p), y0.shape
        Q = _fold(p.view(T, B, H, V).repeat_interleave(3, 2))
        S = (Q @ writes.K.mT).mul_(masks.sees)
        dreads = dgates.view(T, B, 3 * H, V)
        _, dK, dV, db, dR = _delta_backward(Q, S, _fold(dreads), dR.flatten(0, 1), writes, masks)
        dk, dv, dbeta = (_unfold(x, dreads) for x in (dK, dV, db))
        ends = dR.view_as(R), dy.view_as(y0), dc.view_as(y0)
        return None, None, dz.view_as(dreads), dk, dv, dbeta, *ends, None
