"""Chunk forms: the sum rule, the delta rule and the Delta RNN as a few matrix products per chunk of C steps.

Inside a chunk, time is a matrix dimension; README.md derives the form and its gradient and has the names.
Whatever does not depend on the fast weights is computed for all chunks at once; a loop carries them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..once import differentiable_once
from ..precision import without_autocast
from .stepwise import Resets, softmax_backward

CHUNK = 16
"""Approximate steps per chunk: products cost O(C) per step, the loop a few small operations per chunk."""


class Masks(NamedTuple):
    """Per-chunk masks: which step's write reaches which read. n chunks, N = B H, in the dtype of the data."""

    sees: Tensor  # [n, N, C, C]: the query of step t sees the write of step i <= t
    before: Tensor  # the same for the key of step t, which reads before the step's own write
    alive: Tensor  # [n, N, C, 1]: step t still sees the chunk's W_0
    survives: Tensor  # [n, N, C, 1]: the write of step t reaches the chunk's end
    carries: Tensor  # [n, N, 1, 1]: W_0 reaches the chunk's end


def sum_rule(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Equals `reference.sum_rule` to rounding."""
    W, broken = _set_aside_broken(W)
    y, W = _Sum.apply(q, k, v, W, _masks(reset, W.shape[1], W.dtype))
    return _mark_broken(y, W, reset, broken)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.delta_rule` to rounding."""
    W, broken = _set_aside_broken(W)
    y, W = _Delta.apply(q, k, v, beta.unsqueeze(-1), W, _masks(reset, W.shape[1], W.dtype))
    return _mark_broken(y, W, reset, broken)


def delta_rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.delta_rnn` to rounding."""
    R, broken = _set_aside_broken(R)
    masks = _masks(reset, R.shape[1], R.dtype)
    y, R = _DeltaRNN.apply(masks, z, k, v, beta.unsqueeze(-1), R, y0, reset)
    y, R = _mark_broken(y, R, reset, broken)
    return y, R, y[-1]


def _chunks(steps: int) -> tuple[int, int]:
    """Return the number of chunks and their length, chosen for little padding."""
    length = -(-steps // max(1, round(steps / CHUNK)))
    return -(-steps // length), length


def _fold(x: Tensor) -> Tensor:
    """Cut into chunks, `[T, B, H, M]` -> `[n, N, C, M]`, padding with zeros after the last step."""
    steps, batch, heads, size = x.shape
    count, length = _chunks(steps)
    rows = x.new_empty(count, batch, heads, length, size)
    steps_first = rows.permute(0, 3, 1, 2, 4)
    whole = steps // length
    steps_first[:whole] = x[: whole * length].unflatten(0, (whole, length))
    if whole < count:
        steps_first[whole, : steps - whole * length] = x[whole * length :]
        steps_first[whole, steps - whole * length :] = 0
    return rows.flatten(1, 2)


def _unfold(rows: Tensor, like: Tensor) -> Tensor:
    """Undo `_fold`: `[n, N, C, M]` -> `[T, B, H, M]`, the shape of `like`, without the padding."""
    return rows.unflatten(1, like.shape[1:3]).permute(0, 3, 1, 2, 4).flatten(0, 1)[: len(like)]


def _masks(reset: Tensor, heads: int, dtype: torch.dtype) -> Masks:
    rows = _fold(reset[:, :, None, None].expand(-1, -1, heads, 1)).squeeze(-1)  # [n, N, C]
    segment = rows.cumsum(-1, dtype=torch.int32)  # episodes begun so far in the chunk
    sees = (segment.unsqueeze(-1) == segment.unsqueeze(-2)).tril()
    alive = segment == 0
    survives = segment == segment[..., -1:]
    return Masks(
        sees.to(dtype),
        sees.tril(-1).to(dtype),
        alive.to(dtype).unsqueeze(-1),
        survives.to(dtype).unsqueeze(-1),
        alive[..., -1].to(dtype)[..., None, None],
    )


def _set_aside_broken(W: Tensor) -> tuple[Tensor, Tensor | None]:
    """Replace fast weights that hold inf or nan by zeros; also return which, `[B, H, 1, 1]` (None: none).

    Masks multiply, and 0 * nan is nan: a broken memory would outlive its reset and contaminate gradients.
    """
    broken = ~W.detach().sum((-1, -2), keepdim=True).isfinite()
    if W.device.type == "cpu" and not broken.any():
        return W, None
    return torch.where(broken, 0.0, W), broken


def _mark_broken(y: Tensor, W: Tensor, reset: Tensor, broken: Tensor | None) -> tuple[Tensor, Tensor]:
    """Put nan wherever a broken initial state is still alive."""
    if broken is None:
        return y, W
    alive = (reset.cumsum(0) == 0)[:, :, None, None]
    y = torch.where(broken.squeeze(-1) & alive, torch.nan, y)
    return y, torch.where(broken & alive[-1].unsqueeze(-1), torch.nan, W)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, W: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
        Q, K, V = _fold(q), _fold(k), _fold(v)
        Q_alive, K_survives = Q * masks.alive, K * masks.survives
        S = (Q @ K.mT).mul_(masks.sees)
        starts, W_C = _carry(V.mT @ K_survives, W.flatten(0, 1), masks.carries)
        Y = (Q_alive @ starts.mT).add_(S @ V)
        ctx.save_for_backward(q, k, v, W, Q, Q_alive, K, K_survives, V, S, starts, *masks)
        return _unfold(Y, v), W_C.view_as(W)

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dy: Tensor, dW: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, W, Q, Q_alive, K, K_survives, V, S, starts, *rest = ctx.saved_tensors
        masks, dY = Masks(*rest), _fold(dy)
        ends, dW = _carry((dY.mT @ Q_alive).flip(0), dW.flatten(0, 1), masks.carries.flip(0))
        ends = ends.flip(0)  # gradients of the states at the chunks' ends
        dS = (dY @ V.mT).mul_(masks.sees)
        dQ = (dS @ K).addcmul_(masks.alive, dY @ starts)
        dK = (dS.mT @ Q).addcmul_(masks.survives, V @ ends)
        dV = (S.mT @ dY).add_(K_survives @ ends.mT)
        return _unfold(dQ, q), _unfold(dK, k), _unfold(dV, v), dW.view_as(W), None


def _carry(added: Tensor, W: Tensor, carries: Tensor) -> tuple[Tensor, Tensor]:
    """Apply `W <- carries W + added` by chunks; return the W before each, `[n, N, V, K]`, and the last."""
    starts = torch.empty_like(added)
    for start, increment, carry in zip(starts, added, carries, strict=True):
        start.copy_(W)
        W = torch.addcmul(increment, carry, start)
    return starts, W


class _Writes(NamedTuple):
    """Intermediates of the delta-rule writes that reads and gradients need (README.md explains the names)."""

    K: Tensor
    K_survives: Tensor
    b: Tensor
    A: Tensor
    inverse: Tensor
    E: Tensor
    U: Tensor
    starts: Tensor  # [n, N, V, K]: the fast weights that each chunk begins with


def _write(K: Tensor, V: Tensor, b: Tensor, W: Tensor, masks: Masks) -> tuple[_Writes, Tensor]:
    """Write folded k, v and beta into W `[N, V, K]`; return the intermediates and W after the last write."""
    K_alive, K_survives = K * masks.alive, K * masks.survives
    A = (K @ K.mT).mul_(masks.before)
    # An inverse instead of one solve per chunk: it serves all chunks at once, and their gradients.
    inverse = _inverse(A * b.mT)
    E, U, starts = torch.empty_like(V), torch.empty_like(V), W.new_empty(len(V), *W.shape)
    for c, start in enumerate(starts):
        start.copy_(W)
        error = torch.baddbmm(V[c], K_alive[c], start.mT, alpha=-1)  # without the chunk's own writes
        torch.bmm(inverse[c], error, out=E[c])
        torch.mul(E[c], b[c], out=U[c])
        W = torch.baddbmm(start * masks.carries[c], U[c].mT, K_survives[c])
    return _Writes(K, K_survives, b, A, inverse, E, U, starts), W


def _inverse(A: Tensor) -> Tensor:
    """Return `(I + A)⁻¹`, of A what is below its diagonal."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
    return torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True)


def _delta_backward(
    Q: Tensor, S: Tensor, dY: Tensor, dW: Tensor, writes: _Writes, masks: Masks
) -> tuple[Tensor, ...]:
    """Return gradients of Q, K, V, b and the initial W, given those of Q's reads (dY) and of the last W."""
    K, K_survives, b, A, inverse, E, U, starts = writes
    C = K.shape[-2]
    P, alive = torch.cat((K, Q), -2), masks.alive.repeat(1, 1, 2, 1)
    P_alive = P * alive
    D = torch.cat((torch.empty_like(E), dY), -2)  # gradient of P Wᵀ: -dV above dY
    minus_dV = D[:, :, :C]
    dU = S.mT @ dY
    ends = torch.empty_like(starts)
    to_dV = (inverse * b).neg_()
    for c in reversed(range(len(E))):
        ends[c] = dW
        dU[c].baddbmm_(K_survives[c], ends[c].mT)
        minus_dV[c] = to_dV[c].mT @ dU[c]
        dW = torch.baddbmm(ends[c] * masks.carries[c], D[c].mT, P_alive[c])
    db = (dU.add_(A.mT @ minus_dV) * E).sum(-1, keepdim=True)
    dG = (D @ U.mT).mul_(torch.cat((masks.before, masks.sees), -2))
    dP = (dG @ K).addcmul_(alive, D @ starts)
    dK = (dG.mT @ P).addcmul_(masks.survives, U @ ends).add_(dP[:, :, :C])
    return dP[:, :, C:], dK, -minus_dV, db, dW


class _Delta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor]:
        Q, K = _fold(q), _fold(k)
        writes, W_T = _write(K, _fold(v), _fold(beta), W.flatten(0, 1), masks)
        S = (Q @ K.mT).mul_(masks.sees)
        Y = ((Q * masks.alive) @ writes.starts.mT).add_(S @ writes.U)
        ctx.save_for_backward(v, W, Q, S, *writes, *masks)
        return _unfold(Y, v), W_T.view_as(W)

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dy: Tensor, dW: Tensor) -> tuple[Tensor | None, ...]:
        v, W, Q, S, *rest = ctx.saved_tensors
        writes, masks = _Writes(*rest[:8]), Masks(*rest[8:])
        dQ, dK, dV, db, dW = _delta_backward(Q, S, _fold(dy), dW.flatten(0, 1), writes, masks)
        dq, dk, dv, dbeta = (_unfold(x, v) for x in (dQ, dK, dV, db))
        return dq, dk, dv, dbeta, dW.view_as(W), None


class _Reads:
    """Products of rows `[N, 1, V]` with what R is at each step, once a chunk's writes are known.

    Two with matrices constant over the chunk: `[R_0ᵀ, Kᵀ]` and, after a mask, the identity above U. So is the
    gradient of a read, with `[R_0, Uᵀ]` and the identity above K.
    """

    def __init__(self, starts: Tensor, first: Tensor, second: Tensor, masks: Masks, steps: int) -> None:
        size, self.length = second.shape[-1], second.shape[-2]
        eye = torch.eye(size, dtype=second.dtype, device=second.device).expand(*second.shape[:2], -1, -1)
        self.first, self.second = torch.cat((starts, first.mT), -1), torch.cat((eye, second), -2)
        # for each step `[N, 1, size + C]`: its chunk's initial state, then the chunk's writes
        mask = torch.cat((masks.alive.expand(-1, -1, -1, size), masks.sees), -1)
        self.visible = mask.transpose(1, 2).flatten(0, 1)[:steps].unsqueeze(2)
        self.seen = torch.empty_like(self.visible[0])

    def factors(self, t: int, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two whose product is that of the row; the first is good until the next call."""
        c = t // self.length
        return torch.bmm(row, self.first[c], out=self.seen).mul_(self.visible[t]), self.second[c]


class _DeltaRNN(torch.autograd.Function):
    """Writes as in `_Delta`. Only the reads are sequential: the read with p = softmax(y) makes the next y."""

    @staticmethod
    def forward(ctx: Any, masks: Masks, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        z, k, v, beta, R, y0, reset = inputs
        writes, R_T = _write(_fold(k), _fold(v), _fold(beta), R.flatten(0, 1), masks)
        reads, resets = _Reads(writes.starts.mT, writes.K, writes.U, masks, len(z)), Resets(reset)
        rows = z.flatten(1, 2).unsqueeze(2)  # [T, N, 1, V]: rows times matrices
        p, y = torch.empty_like(rows), torch.empty_like(rows)
        before = y0.flatten(0, 1).unsqueeze(1)
        for t in range(len(z)):
            before = resets.forget(t, before)
            torch.softmax(before, -1, out=p[t])
            before = torch.baddbmm(rows[t], *reads.factors(t, p[t]), out=y[t])
        ctx.save_for_backward(p, reset, R, y0, *writes, *masks)
        return y.view(z.shape), R_T.view_as(R)

    @staticmethod
    @differentiable_once
    @without_autocast
    def backward(ctx: Any, dY: Tensor, dR: Tensor) -> tuple[Tensor | None, ...]:
        p, reset, R, y0, *rest = ctx.saved_tensors
        writes, masks = _Writes(*rest[:8]), Masks(*rest[8:])
        reads, resets = _Reads(writes.starts, writes.U, writes.K, masks, len(p)), Resets(reset)
        rows = dY.flatten(1, 2).unsqueeze(2)
        dy, dp = torch.empty_like(p), torch.empty_like(p[0])
        before = torch.zeros_like(p[0])  # gradient of the output, through the next step's read
        for t in reversed(range(len(p))):
            torch.add(rows[t], before, out=dy[t])
            torch.bmm(*reads.factors(t, dy[t]), out=dp)
            before = resets.forget(t, softmax_backward(dp, p[t]))
        dz = dy.view(dY.shape)
        Q = _fold(p.view(dY.shape))
        S = (Q @ writes.K.mT).mul_(masks.sees)
        _, dK, dV, db, dR = _delta_backward(Q, S, _fold(dz), dR.flatten(0, 1), writes, masks)
        return None, dz, *(_unfold(x, dz) for x in (dK, dV, db)), dR.view_as(R), before.view_as(y0), None
