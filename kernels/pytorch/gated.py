"""Chunk forms of the rules whose fast weights decay, and of the one whose writes have momentum.

As in `chunked.py`, whose masks of zeros and ones become products of rates: what is left at step t of what was
written at step i. Everything is differentiable as it stands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..once import differentiable_once
from ..precision import without_autocast
from .apart import differentiated_apart
from .chunked import _fold, _inverse, _mark_broken, _set_aside_broken, _unfold


@differentiated_apart
def gated_sum(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.gated_sum` to rounding; in chunks where an `expand`ed decay is one for all rows."""
    if decay.shape[-1] > 1 and decay.stride(-1) != 0:
        # A loop takes less time than a triangle for each row.
        return reference.gated_sum(q, k, v, decay, W, reset)
    state, broken = _set_aside_broken(W)
    Q, K, V = _fold(q), _fold(k), _fold(v)
    shares, alive = _of_head(decay[..., 0], reset)
    Y = (shares * (Q @ K.mT)) @ V
    added = (shares[:, :, -1].unsqueeze(-1) * V).mT @ K
    now, reads = state.flatten(0, 1), []
    for c in range(len(Q)):
        reads.append(alive[c] * (Q[c] @ now.mT))
        now = alive[c, :, -1:] * now + added[c]
    return _mark_broken(_unfold(Y + torch.stack(reads), v), now.view_as(W), reset, broken)


@differentiated_apart
def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.gated_delta` to rounding."""
    state, broken = _set_aside_broken(W)
    Q, K, V, b = _fold(q), _fold(k), _fold(v), _fold(beta.unsqueeze(-1))
    shares, alive = _of_head(decay, reset)
    S = shares * (Q @ K.mT)
    inverse = _inverse(shares * (K @ K.mT) * b.mT)
    last = shares[:, :, -1].unsqueeze(-1)
    now, outputs = state.flatten(0, 1), []
    for c in range(len(Q)):
        U = b[c] * (inverse[c] @ (V[c] - alive[c] * (K[c] @ now.mT)))
        outputs.append(alive[c] * (Q[c] @ now.mT) + S[c] @ U)
        now = alive[c, :, -1:] * now + (last[c] * U).mT @ K[c]
    return _mark_broken(_unfold(torch.stack(outputs), v), now.view_as(W), reset, broken)


@differentiated_apart
def momentum_delta(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.momentum_delta` to rounding.

    What a write leaves in W at step t is a sum over the steps at which C was added: a product of two
    triangles.
    """
    q, k, v, beta, decay, momentum, W, C, reset = inputs
    (state, broken), (sums, broken_sums) = _set_aside_broken(W), _set_aside_broken(C)
    if broken_sums is not None:  # what is broken in C breaks W, too
        broken = broken_sums if broken is None else broken | broken_sums
    Q, K, b = _fold(q), _fold(k), _fold(beta.unsqueeze(-1))
    V = b * _fold(v)
    (shares, alive), (kept, old) = _of_head(decay, reset), _of_head(momentum, reset)
    # What the write of step i, and C before the chunk, contribute at step t.
    added, old_added = shares @ kept, shares @ old
    KK, QK = K @ K.mT, Q @ K.mT
    inverse = _inverse(shares * KK * b.mT)
    found_V = ((added - kept) * KK).tril(-1) @ V
    read_V, erased = (added * QK) @ V, shares * QK
    now, sum_, outputs = state.flatten(0, 1), sums.flatten(0, 1), []
    for c in range(len(Q)):
        on_K, on_Q = K[c] @ now.mT, Q[c] @ now.mT
        E = inverse[c] @ (alive[c] * on_K + (old_added - old)[c] * (K[c] @ sum_.mT) + found_V[c])
        U = b[c] * E
        outputs.append(alive[c] * on_Q + old_added[c] * (Q[c] @ sum_.mT) + read_V[c] - erased[c] @ U)
        # The last true step: padding would go on adding C to W.
        end = min(len(q) - c * Q.shape[2], Q.shape[2]) - 1
        written = added[c, :, end].unsqueeze(-1) * V[c] - shares[c, :, end].unsqueeze(-1) * U
        now = alive[c, :, end, None] * now + old_added[c, :, end, None] * sum_ + written.mT @ K[c]
        sum_ = old[c, :, end, None] * sum_ + (kept[c, :, end].unsqueeze(-1) * V[c]).mT @ K[c]
    y = _unfold(torch.stack(outputs), v)
    _, C_T = _mark_broken(y, sum_.view_as(C), reset, broken_sums)
    y, W_T = _mark_broken(y, now.view_as(W), reset, broken)
    return y, W_T, C_T


def survival(rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return which share of the write of step i is left at step t, `[..., C, C]`, and of what was there
    before the first step, `[..., C]`, for rates `[..., C]`, 0 where an episode begins."""
    outputs: tuple[Tensor, Tensor] = _Survival.apply(rates)
    return outputs


class _Survival(torch.autograd.Function):
    """Not by the gradient of `cumprod`, which asks the host whether a rate is zero: a CUDA graph cannot."""

    @staticmethod
    def forward(ctx: Any, rates: Tensor) -> tuple[Tensor, Tensor]:
        C = rates.shape[-1]
        t = torch.arange(C, device=rates.device)
        steps = torch.where(t.unsqueeze(-1) > t, rates.unsqueeze(-1), 1.0).cumprod(-2)
        steps, alive = torch.where(t.unsqueeze(-1) >= t, steps, 0.0), rates.cumprod(-1)
        ctx.save_for_backward(steps, alive)
        return steps, alive

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dsteps: Tensor, dalive: Tensor) -> tuple[Tensor]:
        """Where step j's rate is a factor, the others are those from i to j - 1 and from j to t."""
        steps, alive = ctx.saved_tensors
        after = steps.mT @ torch.cat((dalive.unsqueeze(-1), dsteps.tril(-1)), -1)
        before = torch.cat((alive.unsqueeze(-1), steps), -1)
        drates = after[..., 1:, :].mul(before[..., :-1, :]).tril(1).sum(-1)
        return (torch.cat((after[..., :1, 0], drates), -1),)


def _of_head(rates: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Like `survival` by chunks for one rate a head: `[T, B, H]` -> `[n, N, C, C]` and `[n, N, C, 1]`."""
    rows = torch.where(reset.unsqueeze(-1), 0.0, rates)
    steps, alive = survival(_fold(rows.unsqueeze(-1) - 1).squeeze(-1) + 1)  # padding keeps everything
    return steps, alive.unsqueeze(-1)
