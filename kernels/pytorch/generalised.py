"""A step loop with hand-written backward for the generalised delta rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..once import differentiable_once
from ..precision import without_autocast
from .stepwise import SPACING, Resets, wants_gradient


def generalised_delta(
    q: Tensor, k: Tensor, u: Tensor, e: Tensor, decay: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.generalised_delta` to rounding."""
    inputs = (q, k, u, e, decay, W)
    outputs: tuple[Tensor, Tensor] = _GeneralisedDelta.apply(*inputs, reset, wants_gradient(*inputs))
    return outputs


def _write(W: Tensor, a: Tensor, r: Tensor, k: Tensor) -> Tensor:
    return W.mul_(a.unsqueeze(1)).addcmul_(r.unsqueeze(2), k.unsqueeze(1))


def _row_times(x: Tensor, M: Tensor) -> Tensor:
    """Multiply row vectors `[N, I]` with matrices `[N, I, J]`."""
    return torch.bmm(x.unsqueeze(1), M).squeeze(1)


class _GeneralisedDelta(torch.autograd.Function):
    """Rows and heads are one batch of `B H`; r is u - W e of each write."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        u: Tensor,
        e: Tensor,
        decay: Tensor,
        W: Tensor,
        reset: Tensor,
        save: bool,
    ) -> tuple[Tensor, Tensor]:
        resets, now = Resets(reset), W.flatten(0, 1).clone(memory_format=torch.contiguous_format)
        q, k, u, e, a = (x.flatten(1, 2) for x in (q, k, u, e, decay))
        checkpoints = now.new_empty(-(-len(q) // SPACING) if save else 0, *now.shape)
        r, y = u.new_empty(u.shape), u.new_empty(*u.shape[:2], u.shape[-1])
        for t in range(len(q)):
            resets.forget_(t, now)
            if save and t % SPACING == 0:
                checkpoints[t // SPACING] = now
            for i in range(k.shape[2]):
                erased = _row_times(e[t, :, i] * a[t, :, i], now.mT)
                _write(now, a[t, :, i], torch.sub(u[t, :, i], erased, out=r[t, :, i]), k[t, :, i])
            y[t] = _row_times(q[t], now.mT)
        if save:
            ctx.resets = resets
            ctx.save_for_backward(q, k, e, a, r, checkpoints)
        return y.view(*reset.shape, *W.shape[1:3]), now.view(W.shape)

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dY: Tensor, dW_T: Tensor) -> tuple[Tensor | None, ...]:
        q, k, e, a, r, checkpoints = ctx.saved_tensors
        dW, dY = dW_T.flatten(0, 1).clone(memory_format=torch.contiguous_format), dY.flatten(1, 2)
        dq, dk, du, de, da = (torch.empty_like(x) for x in (q, k, r, e, a))
        for t, past in _rewind(checkpoints, k, a, r, ctx.resets):
            dW.addcmul_(dY[t].unsqueeze(2), q[t].unsqueeze(1))
            for i, W in reversed([*enumerate(past)]):
                here = (t, slice(None), i)
                if i == len(past) - 1:  # after which y was read
                    match = (r[here] * dY[t]).sum(-1, keepdim=True)
                    dq[t] = torch.addcmul(a[here] * _row_times(dY[t], W), match, k[here])
                du[here], dk[here] = _row_times(k[here], dW.mT), _row_times(r[here], dW)
                dW.addcmul_(du[here].unsqueeze(2), e[here].unsqueeze(1), value=-1)
                de[here] = -a[here] * _row_times(du[here], W)
                da[here] = (dW * W).sum(1)
                dW.mul_(a[here].unsqueeze(1))
            ctx.resets.forget_(t, dW)
        heads = dW_T.shape[:2]
        return *(x.unflatten(1, heads) for x in (dq, dk, du, de, da)), dW.view(dW_T.shape), None, None


def _rewind(
    checkpoints: Tensor, k: Tensor, a: Tensor, r: Tensor, resets: Resets
) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield t, from last to first, and the fast weights `[B H, V, K]` before each write of step t."""
    for mark in reversed(range(len(checkpoints))):
        now, past = checkpoints[mark].clone(), []
        for t in range(mark * SPACING, min((mark + 1) * SPACING, len(k))):
            resets.forget_(t, now)
            before = []
            for i in range(k.shape[2]):
                before.append(now.clone())
                _write(now, a[t, :, i], r[t, :, i], k[t, :, i])
            past.append((t, before))
        yield from reversed(past)
