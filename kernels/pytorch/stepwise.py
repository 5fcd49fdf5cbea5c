"""Step loops: with hand-written backward for `recurrent_delta` and the LSTM, which have no chunk form, and
without gradients for actors, which take one step at a time.

A delta-rule step with the rows P = (q, k) and W the fast weights before the write is

    (r, s) = P Wᵀ            both reads at once
    u = β (v - s)
    y = r + (q·k) u          equals a read after the write
    W = W + u kᵀ

Vectors multiply from the left: on CPUs a batched row-times-matrix product is several times faster than
matrix-times-column. Inside the loops, rows and heads form one batch of N = B H.

Backward needs the fast weights before each write. Undoing writes would amplify rounding, and a reset cannot
be undone; storing all of them costs more time in fresh memory than the arithmetic. So forward stores every
`SPACING`-th, and backward replays the writes in between, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..once import differentiable_once
from ..precision import without_autocast

SPACING = 8
"""Steps between stored fast weights; the square root of the unroll's length takes least memory."""


@torch.no_grad()
def sum_rule(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Equals `reference.sum_rule` to rounding, without gradients."""
    fast = _Fast(W, Resets(reset), keep=False)
    y = v.new_empty(v.shape)
    for t in range(len(q)):
        fast.begin(t)
        fast.write(v[t].flatten(0, 1), k[t].flatten(0, 1))
        torch.bmm(q[t].flatten(0, 1).unsqueeze(1), fast.now.mT, out=y[t].view(-1, 1, v.shape[-1]))
    return y, fast.now.view(W.shape)


@torch.no_grad()
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.delta_rule` to rounding, without gradients."""
    fast = _Fast(W, Resets(reset), keep=False)
    y = v.new_empty(v.shape)
    steps = _DeltaSteps(fast, _flat(y), k.shape[-1], keep=False)
    rows, v, beta = _flat(torch.stack((q, k), 3)), _flat(v), _flat(beta.unsqueeze(-1))
    for t in range(len(q)):
        fast.begin(t)
        steps.take(t, rows[t], v[t], beta[t])
    return y, fast.now.view(W.shape)


@torch.no_grad()
def delta_rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.delta_rnn` to rounding, without gradients."""
    resets = Resets(reset)
    fast = _Fast(R, resets, keep=False)
    outputs = z.new_empty(z.shape)
    steps = _DeltaSteps(fast, _flat(outputs), k.shape[-1], keep=False)
    z, k, v, beta = _flat(z), _flat(k), _flat(v), _flat(beta.unsqueeze(-1))
    y = y0.flatten(0, 1)
    for t in range(len(z)):
        fast.begin(t)
        P = torch.stack((resets.forget(t, y).softmax(-1), k[t]), 1, out=steps.P[0])
        y = steps.take(t, P, v[t], beta[t]).add_(z[t])
    return outputs, fast.now.view(R.shape), outputs[-1]


def recurrent_delta(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.recurrent_delta` to rounding."""
    q, k, v, beta, Rq, Rk, Rv, rb, W, y0, reset = inputs
    x = torch.cat((q, k, v, beta.unsqueeze(-1)), -1)
    R = torch.cat((Rq, Rk, Rv, rb.unsqueeze(-1)), -1)
    y, W = _RecurrentDelta.apply(x, R, W, y0, reset, wants_gradient(x, R, W, y0))
    return y, W, y[-1]


def lstm(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.lstm` to rounding."""
    inputs = (gates, weight, h0, c0)
    if not wants_gradient(*inputs):
        return reference.lstm(*inputs, reset)  # the loop below only saves time in backward
    h, c = _LSTM.apply(*inputs, reset)
    return h, h[-1], c


def wants_gradient(*inputs: Tensor) -> bool:
    """Return whether autograd will differentiate a function of these inputs."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def sum_of_outer(g: Tensor, dx: Tensor) -> Tensor:
    """Sum `g dxᵀ` over all steps and rows: `[T, B, H, V]`, `[T, B, H, N]` -> `[H, V, N]`.

    One product per head, on views; `einsum` would copy its inputs first and take several times as long.
    """
    return torch.bmm(g.flatten(0, 1).permute(1, 2, 0), dx.flatten(0, 1).transpose(0, 1))


def _flat(x: Tensor) -> Tensor:
    """Flatten `[T, B, H, ...]` to `[T, N, ...]`."""
    return x.flatten(1, 2)


class Resets:
    """Zeroes the rows of states that begin an episode at a given step."""

    def __init__(self, reset: Tensor) -> None:
        # On a CPU reading the mask saves most of the work; elsewhere it would wait for the device.
        self.reset = reset
        self.on_cpu = reset.device.type == "cpu"
        self.any = reset.any(1).tolist() if self.on_cpu else [True] * len(reset)

    def forget_(self, t: int, *states: Tensor) -> None:
        """Zero rows of each state, `[B, ...]` or `[N, ...]`, in place."""
        if not self.any[t]:
            return
        batch = self.reset.shape[1]
        rows = self.reset[t].nonzero().squeeze(-1) if self.on_cpu else self.reset[t]
        for state in states:
            state = state.view(batch, -1)
            if self.on_cpu:
                state.index_fill_(0, rows, 0)
            else:
                state.masked_fill_(rows.unsqueeze(-1), 0)

    def forget(self, t: int, state: Tensor) -> Tensor:
        """Return the state with those rows zeroed; the given one stays as it is."""
        if not self.any[t]:
            return state
        state = state.clone(memory_format=torch.contiguous_format)
        self.forget_(t, state)
        return state


class _Fast:
    """Fast weights over time: the current ones, `now` `[N, V, K]`, and every `SPACING`-th, `checkpoints`."""

    def __init__(self, W: Tensor, resets: Resets, keep: bool) -> None:
        self.resets = resets
        self.now = W.flatten(0, 1)
        self.owned = False  # the caller's W must stay as it is
        steps = len(resets.reset)
        self.checkpoints = self.now.new_empty(-(-steps // SPACING), *self.now.shape) if keep else None

    def begin(self, t: int) -> None:
        """Zero the rows that begin an episode at step t, and store the result if it is due."""
        if self.resets.any[t] and not self.owned:
            self.now, self.owned = self.now.clone(memory_format=torch.contiguous_format), True
        self.resets.forget_(t, self.now)
        if self.checkpoints is not None and t % SPACING == 0:
            self.checkpoints[t // SPACING].copy_(self.now)

    def write(self, u: Tensor, k: Tensor) -> None:
        u, k = u.unsqueeze(-1), k.unsqueeze(-2)
        if self.owned:
            self.now.addcmul_(u, k)
        else:
            self.now, self.owned = torch.addcmul(self.now, u, k), True


def _rewind(checkpoints: Tensor, ue: Tensor, P: Tensor, resets: Resets) -> Iterator[tuple[int, Tensor]]:
    """Yield t, from last to first, and the fast weights `[N, V, K]` that step t read and wrote to."""
    steps = len(P)
    buffer = checkpoints.new_empty(min(SPACING, steps) - 1, *checkpoints.shape[1:])
    for mark in reversed(range(len(checkpoints))):
        start, stop = mark * SPACING, min((mark + 1) * SPACING, steps)
        past = [checkpoints[mark]]
        for t in range(start, stop - 1):
            u, k = ue[t, :, 0], P[t, :, 1]
            W = torch.addcmul(past[-1], u.unsqueeze(-1), k.unsqueeze(-2), out=buffer[t - start])
            resets.forget_(t + 1, W)
            past.append(W)
        for t in reversed(range(start, stop)):
            yield t, past[t - start]


class _DeltaSteps:
    """Forward delta-rule steps, with the intermediates that `_DeltaStepsBackward` needs if `keep`."""

    def __init__(self, fast: _Fast, y: Tensor, key_size: int, keep: bool) -> None:
        self.fast, self.y, self.stride = fast, y, int(keep)
        T, N, V = y.shape
        rows = T if keep else 1
        self.P = y.new_empty(rows, N, 2, key_size)
        self.ue = y.new_empty(rows, N, 2, V)  # u and error = v - s
        self.match = y.new_empty(rows, N, 1)  # q·k
        self.reads = y.new_empty(N, 2, V)

    def take(self, t: int, P: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        """Write and read: P `[N, 2, K]`, v `[N, V]`, beta `[N, 1]` -> y `[N, V]`, which is row t of `y`."""
        row = t * self.stride
        q, k = P.unbind(1)
        u, error = self.ue[row].unbind(1)
        read_q, read_k = torch.bmm(P, self.fast.now.mT, out=self.reads).unbind(1)
        torch.sub(v, read_k, out=error)
        torch.mul(error, beta, out=u)
        match = torch.sum(q * k, -1, keepdim=True, out=self.match[row])
        y = torch.addcmul(read_q, match, u, out=self.y[t])
        self.fast.write(u, k)
        return y


class _DeltaStepsBackward:
    """Backward of the same steps, last to first. `dW` `[N, V, K]` is the gradient of the fast weights."""

    def __init__(self, dW: Tensor, P: Tensor, ue: Tensor, match: Tensor, beta: Tensor) -> None:
        self.dW = dW.flatten(0, 1).clone(memory_format=torch.contiguous_format)
        # All views of steps in advance: indexing inside the loop would cost as much as the arithmetic.
        self.P, self.k = P.unbind(0), P[:, :, 1:].unbind(0)
        self.ue, self.u = ue.unbind(0), ue[:, :, :1].unbind(0)
        self.swapped, self.match = P.flip(2).unbind(0), match.unbind(0)
        self.scale = torch.cat((torch.ones_like(beta), -beta), -1).unsqueeze(-1).unbind(0)
        self.dyu = torch.empty_like(ue[0])  # gradients of y and u
        self.dy, self.du = self.dyu.unbind(1)
        self.dreads = torch.empty_like(ue[0])  # gradients of the two reads, r and s
        self.minus_dv = self.dreads[:, 1]

    def take(self, t: int, W: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients of P, -v and beta from W before step t and dy `[N, V]`; step `dW` back."""
        self.dy.copy_(dy)
        torch.addcmul(torch.bmm(self.k[t], self.dW.mT).squeeze(1), dy, self.match[t], out=self.du)
        dreads = torch.mul(self.dyu, self.scale[t], out=self.dreads)
        dots = (self.dyu * self.ue[t]).sum(-1, keepdim=True)  # u·dy, the gradient of q·k, and error·du
        dP = torch.bmm(dreads, W).addcmul_(self.swapped[t], dots[:, :1])
        dP[:, 1:].add_(torch.bmm(self.u[t], self.dW))
        self.dW.baddbmm_(dreads.mT, self.P[t])
        return dP, self.minus_dv, dots[:, 1]


def softmax_backward(dp: Tensor, p: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)


class _RecurrentDelta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, R: Tensor, W: Tensor, y0: Tensor, reset: Tensor, keep: bool
    ) -> tuple[Tensor, Tensor]:
        T, B, H, size = x.shape
        V, K = W.shape[2:]
        resets = Resets(reset)
        fast = _Fast(W, resets, keep)
        outputs = y0.new_empty(T, B, H, V)
        steps = _DeltaSteps(fast, _flat(outputs), K, keep)
        rows = T if keep else 1
        gs, betas = y0.new_empty(rows, B, H, V), y0.new_empty(rows, B * H, 1)
        a = y0.new_empty(B, H, size)
        q_and_k, v, beta = _parts(a.flatten(0, 1), K)
        y = y0
        for t in range(T):
            row = t * keep
            fast.begin(t)
            g = torch.tanh(y, out=gs[row])
            resets.forget_(t, g)  # tanh(0) = 0: forgetting g is forgetting y
            torch.add(x[t], torch.bmm(g.transpose(0, 1), R).transpose(0, 1), out=a)
            P = torch.softmax(q_and_k, -1, out=steps.P[row])
            steps.take(t, P, v, torch.sigmoid(beta, out=betas[row]))
            y = outputs[t]
        if keep:
            ctx.resets = resets
            ctx.save_for_backward(fast.checkpoints, R, gs, betas, steps.P, steps.ue, steps.match)
        return outputs, fast.now.view(W.shape)

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dY: Tensor, dW: Tensor) -> tuple[Tensor | None, ...]:
        checkpoints, R, g, beta, P, ue, match = ctx.saved_tensors
        steps = _DeltaStepsBackward(dW, P, ue, match, beta)
        dtanh = (1 - g * g).unbind(0)
        dsigmoid = (beta * (1 - beta)).unbind(0)
        da = g.new_empty(*g.shape[:3], R.shape[-1])
        da_parts = [part.unbind(0) for part in _parts(_flat(da), P.shape[-1])]
        da_heads_first = da.transpose(1, 2).unbind(0)
        dy = torch.zeros_like(g[0])
        for t, W in _rewind(checkpoints, ue, P, ctx.resets):
            dy += dY[t]
            dP, minus_dv, dbeta = steps.take(t, W, dy.flatten(0, 1))
            da_q_and_k, da_v, da_beta = (part[t] for part in da_parts)
            da_q_and_k.copy_(softmax_backward(dP, steps.P[t]))
            torch.neg(minus_dv, out=da_v)
            torch.mul(dbeta, dsigmoid[t], out=da_beta)
            dg = torch.bmm(da_heads_first[t], R.mT).transpose(0, 1)
            torch.mul(dg, dtanh[t], out=dy)
            ctx.resets.forget_(t, steps.dW, dy)
        return da, sum_of_outer(g, da), steps.dW.view(dW.shape), dy, None, None


def _parts(a: Tensor, key_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split a `[..., 2 K + V + 1]` into views: q and k `[..., 2, K]`, v `[..., V]`, beta `[..., 1]`."""
    q_and_k = a[..., : 2 * key_size].unflatten(-1, (2, key_size))
    return q_and_k, a[..., 2 * key_size : -1], a[..., -1:]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        T, (B, N) = len(gates), h0.shape
        resets = Resets(reset)
        outputs, c = h0.new_empty(T, B, N), c0.clone(memory_format=torch.contiguous_format)
        acts = gates.new_empty(T, B, 4 * N)  # i, f, g, o
        hs, cs = h0.new_empty(T, B, N), c0.new_empty(T, B, N)  # before each step, after its reset
        tanh_cs = c0.new_empty(T, B, N)
        h, to_gates = h0, weight.mT
        for t in range(T):
            before = hs[t].copy_(h)
            resets.forget_(t, before, c)
            cs[t] = c
            act = torch.addmm(gates[t], before, to_gates, out=acts[t])
            act[:, : 2 * N].sigmoid_()
            act[:, 2 * N : 3 * N].tanh_()
            act[:, 3 * N :].sigmoid_()
            i, f, g, o = act.chunk(4, -1)
            c.mul_(f).addcmul_(i, g)
            h = torch.mul(o, torch.tanh(c, out=tanh_cs[t]), out=outputs[t])
        ctx.resets = resets
        ctx.save_for_backward(weight, acts, hs, cs, tanh_cs)
        return outputs, c

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dH: Tensor, dC: Tensor) -> tuple[Tensor | None, ...]:
        weight, acts, hs, cs, tanh_cs = ctx.saved_tensors
        i, f, g, o = acts.chunk(4, -1)
        # Each gate's gradient is that of c (for o: of h) times a factor; factors of all steps at once.
        factors = torch.cat((g * i * (1 - i), cs * f * (1 - f), i * (1 - g * g), tanh_cs * o * (1 - o)), -1)
        to_c = o * (1 - tanh_cs * tanh_cs)
        dgates = factors.unflatten(-1, (4, -1))
        dh, dc = torch.zeros_like(dC), dC.clone(memory_format=torch.contiguous_format)
        for t in reversed(range(len(acts))):
            dh += dH[t]
            dc.addcmul_(dh, to_c[t])
            dgates[t, :, :3] *= dc.unsqueeze(1)
            dgates[t, :, 3] *= dh
            torch.mm(factors[t], weight, out=dh)
            dc *= f[t]
            ctx.resets.forget_(t, dh, dc)
        return factors, factors.flatten(0, 1).mT @ hs.flatten(0, 1), dh, dc, None
