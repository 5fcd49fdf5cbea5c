"""Lean loops over steps: for the two rules that cannot do otherwise, with backward passes written by hand,
and for actors, who take one step at a time and no gradient.

A delta-rule step with the rows P = (q, k) and W the fast weights before the write is


    (r, s) = P Wᵀ            both reads at once
    u = β (v - s)
    y = r + (q·k) u          what reading after the write gives
    W = W + u kᵀ

and `_write_and_read` and `_write_and_read_backward` serve every rule. Vectors stand left of the matrices: on
CPUs a batched row-times-matrix product is several times faster than matrix-times-column.

Backward keeps the fast weights before each write. Undoing the writes instead would need no such memory, but
amplifies rounding, and a reset cannot be undone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@torch.no_grad()
def sum_rule(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Equals `reference.sum_rule` to rounding, without gradients."""
    resets, fast = _Resets(reset), _Fast(W, len(q), keep=False)
    y = v.new_empty(v.shape)
    for t in range(len(q)):
        resets.forget_fast_(t, fast)
        fast.write(t, v[t], k[t])
        torch.bmm(
            q[t].flatten(0, 1).unsqueeze(1), fast.now.flatten(0, 1).mT, out=y[t].view(-1, 1, v.shape[-1])
        )
    return y, fast.now


@torch.no_grad()
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.delta_rule` to rounding, without gradients."""
    resets, fast = _Resets(reset), _Fast(W, len(q), keep=False)
    trace = _Trace(v[0], len(q), k.shape[-1], keep=False)
    y = v.new_empty(v.shape)
    P = torch.stack((q, k), 3)
    beta = beta.unsqueeze(-1)
    for t in range(len(q)):
        resets.forget_fast_(t, fast)
        _write_and_read(fast, t, P[t], v[t], beta[t], trace, y[t])
    return y, fast.now


def delta_rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.delta_rnn` to rounding."""
    inputs = (z, k, v, beta.unsqueeze(-1), R, y0)
    y, R = _DeltaRNN.apply(*inputs, reset, _wants_gradient(inputs))
    return y, R, y[-1]


def recurrent_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.recurrent_delta` to rounding."""
    x = torch.cat((q, k, v, beta.unsqueeze(-1)), -1)
    R = torch.cat((Rq, Rk, Rv, rb.unsqueeze(-1)), -1)
    inputs = (x, R, W, y0)
    y, W = _RecurrentDelta.apply(*inputs, reset, _wants_gradient(inputs))
    return y, W, y[-1]


def _wants_gradient(inputs: tuple[Tensor, ...]) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


class _Resets:
    """Zeroes, in place, the rows that begin an episode at a step."""

    def __init__(self, reset: Tensor) -> None:
        # On a CPU a look at the mask saves most of the work; elsewhere it would wait for the device.
        self.reset = reset
        self.on_cpu = reset.device.type == "cpu"
        self.any = reset.any(1).tolist() if self.on_cpu else [True] * len(reset)

    def forget_(self, t: int, *states: Tensor) -> None:
        if not self.any[t]:
            return
        if self.on_cpu:
            rows = self.reset[t].nonzero().squeeze(-1)
            for state in states:
                state.index_fill_(0, rows, 0)
        else:
            for state in states:
                state.masked_fill_(self.reset[t].view(-1, *(1,) * (state.dim() - 1)), 0)

    def forget_fast_(self, t: int, fast: _Fast) -> None:
        if self.any[t] and not fast.owned:
            fast.now = fast.now.clone()
            fast.owned = True
        self.forget_(t, fast.now)


class _Fast:
    """Fast weights on their way through time: `now` `[B, H, V, K]`, and their past if backward needs it."""

    def __init__(self, W: Tensor, steps: int, keep: bool) -> None:
        self.past = W.new_empty(steps + 1, *W.shape) if keep else None
        self.now = W if self.past is None else self.past[0].copy_(W)
        self.owned = self.past is not None
        """Whether `now` may be overwritten: the caller's W must stay as it is."""

    def write(self, t: int, u: Tensor, k: Tensor) -> None:
        u, k = u.unsqueeze(-1), k.unsqueeze(-2)
        if self.past is not None:
            self.now = torch.addcmul(self.now, u, k, out=self.past[t + 1])
        elif self.owned:
            self.now.addcmul_(u, k)
        else:
            self.now = torch.addcmul(self.now, u, k)
            self.owned = True


class _Trace:
    """What one rule's forward pass leaves for its backward pass, one row a step."""

    def __init__(self, like: Tensor, steps: int, key_size: int, keep: bool) -> None:
        B, H, V = like.shape
        rows = steps if keep else 1
        self.keep = keep
        self.P = like.new_empty(rows, B, H, 2, key_size)
        self.error = like.new_empty(rows, B, H, V)
        self.u = like.new_empty(rows, B, H, V)
        self.match = like.new_empty(rows, B, H, 1)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.P, self.error, self.u, self.match


def _write_and_read(
    fast: _Fast, t: int, P: Tensor, v: Tensor, beta: Tensor, trace: _Trace, y: Tensor
) -> None:
    """One delta-rule step: P `[B, H, 2, K]`, v `[B, H, V]`, beta `[B, H, 1]`; the output goes into y."""
    row = t if trace.keep else 0
    W = fast.now
    reads = torch.bmm(P.flatten(0, 1), W.flatten(0, 1).mT).view(*W.shape[:2], 2, -1)
    q, k = P.unbind(2)
    error = torch.sub(v, reads[:, :, 1], out=trace.error[row])
    u = torch.mul(error, beta, out=trace.u[row])
    match = torch.sum(q * k, -1, keepdim=True, out=trace.match[row])
    torch.addcmul(reads[:, :, 0], match, u, out=y)
    fast.write(t, u, k)


def _write_and_read_backward(
    dW: Tensor, dy: Tensor, W: Tensor, P: Tensor, error: Tensor, u: Tensor, match: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of P, v and beta for one step. dW, the gradient of W after the step, becomes that before."""
    B, H, V, K = W.shape
    flat = dW.view(B * H, V, K)
    k = P[:, :, 1:].flatten(0, 1)
    du = torch.bmm(k, flat.mT).view(B, H, V).addcmul_(dy, match)
    dv = du * beta
    dk_of_write = torch.bmm(u.view(B * H, 1, V), flat).view(B, H, 1, K)
    dreads = torch.stack((dy, -dv), 2)
    dP = torch.bmm(dreads.view(B * H, 2, V), W.view(B * H, V, K)).view(B, H, 2, K)
    dmatch = (u * dy).sum(-1, keepdim=True).unsqueeze(-1)
    dP.addcmul_(P.flip(2), dmatch)
    dP[:, :, 1:].add_(dk_of_write)
    flat.baddbmm_(dreads.view(B * H, 2, V).mT, P.view(B * H, 2, K))
    return dP, dv, (du * error).sum(-1, keepdim=True)


def _softmax_backward(dp: Tensor, p: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)


class _DeltaRNN(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        R: Tensor,
        y0: Tensor,
        reset: Tensor,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        resets = _Resets(reset)
        fast = _Fast(R, len(z), keep)
        trace = _Trace(y0, len(z), k.shape[-1], keep)
        outputs = torch.empty_like(z, memory_format=torch.contiguous_format)
        y = y0.clone()
        for t in range(len(z)):
            resets.forget_fast_(t, fast)
            resets.forget_(t, y)
            P = torch.stack((y.softmax(-1), k[t]), 2, out=trace.P[t if keep else 0])
            _write_and_read(fast, t, P, v[t], beta[t], trace, outputs[t])
            y = outputs[t].add_(z[t])
            if resets.any[min(t + 1, len(z) - 1)]:
                y = y.clone()
        if keep:
            ctx.resets = resets
            ctx.save_for_backward(fast.past, beta, *trace.tensors())
        return outputs, fast.now if fast.past is None else fast.now.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY: Tensor, dR: Tensor) -> tuple[Tensor | None, ...]:
        past, beta, P, error, u, match = ctx.saved_tensors
        dR = dR.clone(memory_format=torch.contiguous_format)
        dz = torch.empty_like(dY, memory_format=torch.contiguous_format)
        dk = dY.new_empty(P[:, :, :, 1].shape)
        dv, dbeta = torch.empty_like(dz), dY.new_empty(match.shape)
        dy = torch.zeros_like(dz[0])
        for t in reversed(range(len(dz))):
            dy = torch.add(dy, dY[t], out=dz[t])
            dP, dv[t], dbeta[t] = _write_and_read_backward(
                dR, dy, past[t], P[t], error[t], u[t], match[t], beta[t]
            )
            dk[t] = dP[:, :, 1]
            dy = _softmax_backward(dP[:, :, 0], P[t, :, :, 0])
            ctx.resets.forget_(t, dR, dy)
        return dz, dk, dv, dbeta, dR, dy, None, None


class _RecurrentDelta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, R: Tensor, W: Tensor, y0: Tensor, reset: Tensor, keep: bool
    ) -> tuple[Tensor, Tensor]:
        steps, K = len(x), W.shape[-1]
        resets = _Resets(reset)
        fast = _Fast(W, steps, keep)
        trace = _Trace(y0, steps, K, keep)
        outputs = y0.new_empty(steps, *y0.shape)
        gs = y0.new_empty(steps if keep else 1, *y0.shape)
        betas = y0.new_empty(steps if keep else 1, *y0.shape[:2], 1)
        y = y0
        for t in range(steps):
            row = t if keep else 0
            g = torch.tanh(y, out=gs[row])
            resets.forget_fast_(t, fast)
            resets.forget_(t, g)  # tanh(0) = 0: forgetting g is forgetting y
            a = x[t] + torch.bmm(g.transpose(0, 1), R).transpose(0, 1)
            P = torch.softmax(a[..., : 2 * K].unflatten(-1, (2, K)), -1, out=trace.P[row])
            beta = torch.sigmoid(a[..., -1:], out=betas[row])
            y = outputs[t]
            _write_and_read(fast, t, P, a[..., 2 * K : -1], beta, trace, y)
        if keep:
            ctx.resets = resets
            ctx.save_for_backward(fast.past, R, gs, betas, *trace.tensors())
        return outputs, fast.now if fast.past is None else fast.now.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY: Tensor, dW: Tensor) -> tuple[Tensor | None, ...]:
        past, R, g, beta, P, error, u, match = ctx.saved_tensors
        K = P.shape[-1]
        dW = dW.clone(memory_format=torch.contiguous_format)
        dtanh = 1 - g * g
        dsigmoid = beta * (1 - beta)
        da = dY.new_empty(*g.shape[:3], R.shape[-1])
        dy = torch.zeros_like(g[0])
        for t in reversed(range(len(g))):
            dy = dy + dY[t]
            dP, dv, dbeta = _write_and_read_backward(dW, dy, past[t], P[t], error[t], u[t], match[t], beta[t])
            da[t, ..., : 2 * K].view(P[t].shape).copy_(_softmax_backward(dP, P[t]))
            da[t, ..., 2 * K : -1].copy_(dv)
            torch.mul(dbeta, dsigmoid[t], out=da[t, ..., -1:])
            dg = torch.bmm(da[t].transpose(0, 1), R.mT).transpose(0, 1)
            dy = dg * dtanh[t]
            ctx.resets.forget_(t, dW, dy)
        dR = torch.einsum("tbhv,tbhn->hvn", g, da)
        return da, dR, dW, dy, None, None
