"""The sum rule and the delta rule over chunks of C steps as a few matrix products.

Inside a chunk time is a matrix dimension; README.md derives the form and its gradient in the names used here.
What does not depend on the fast weights is computed for all chunks at once; a loop over chunks carries them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import without_autocast

CHUNK = 16
"""Steps a chunk, about: products inside a chunk cost C a step, the loop a few small operations a chunk."""


class Masks(NamedTuple):
    """Who sees whom in each of n chunks, in the dtype of the data; N = B H, and a trailing 1 scales rows."""

    sees: Tensor  # [n, N, 2C, C]: key t sees the writes of steps i < t, query t those of i <= t
    alive: Tensor  # [n, N, C, 1]: step t still sees the chunk's W_0
    survives: Tensor  # [n, N, C, 1]: the write of step t reaches the chunk's end
    kept: Tensor  # [n, N, 1, 1]: W_0 reaches the chunk's end


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


def _chunks(steps: int) -> tuple[int, int]:
    """How many chunks, and the steps of each: as equal as can be, so that few steps are padding."""
    length = -(-steps // max(1, round(steps / CHUNK)))
    return -(-steps // length), length


def _fold(x: Tensor) -> Tensor:
    """`[T, B, H, M]` -> `[n, N, C, M]`, with zeros after the last step."""
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
    """`[n, N, C, M]` -> the shape of `like`, `[T, B, H, M]`: without what follows the last step."""
    return rows.unflatten(1, like.shape[1:3]).permute(0, 3, 1, 2, 4).flatten(0, 1)[: len(like)]


def _masks(reset: Tensor, heads: int, dtype: torch.dtype) -> Masks:
    rows = _fold(reset[:, :, None, None].expand(-1, -1, heads, 1)).squeeze(-1)  # [n, N, C]
    segment = rows.cumsum(-1, dtype=torch.int32)  # how many episodes have begun in the chunk
    sees = (segment.unsqueeze(-1) == segment.unsqueeze(-2)).tril()
    alive = segment == 0
    survives = segment == segment[..., -1:]
    return Masks(
        torch.cat((sees.tril(-1), sees), -2).to(dtype),
        alive.to(dtype).unsqueeze(-1),
        survives.to(dtype).unsqueeze(-1),
        alive[..., -1].to(dtype)[..., None, None],
    )


def _set_aside_broken(W: Tensor) -> tuple[Tensor, Tensor | None]:
    """Zero in place of fast weights that hold inf or nan, and which `[B, H, 1, 1]` they were (None: none).

    The masks multiply, and 0 * nan is nan: a broken memory would outlive its reset, and taint the gradients.
    """
    broken = ~W.detach().sum((-1, -2), keepdim=True).isfinite()
    if W.device.type == "cpu" and not broken.any():
        return W, None
    return torch.where(broken, torch.zeros((), dtype=W.dtype, device=W.device), W), broken


def _mark_broken(y: Tensor, W: Tensor, reset: Tensor, broken: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return nan wherever a broken initial state is still alive."""
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
        S = (Q @ K.mT).mul_(masks.sees[:, :, -Q.shape[-2] :])
        starts, W_C = _carry(V.mT @ K_survives, W.flatten(0, 1), masks.kept)
        Y = (Q_alive @ starts.mT).add_(S @ V)
        ctx.save_for_backward(q, k, v, W, Q, Q_alive, K, K_survives, V, S, starts, *masks)
        return _unfold(Y, v), W_C.view_as(W)

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, dy: Tensor, dW: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, W, Q, Q_alive, K, K_survives, V, S, starts, *rest = ctx.saved_tensors
        masks, dY = Masks(*rest), _fold(dy)
        ends, dW = _carry((dY.mT @ Q_alive).flip(0), dW.flatten(0, 1), masks.kept.flip(0))
        ends = ends.flip(0)  # gradients of the states at the chunks' ends
        dS = (dY @ V.mT).mul_(masks.sees[:, :, -Q.shape[-2] :])
        dQ = (dS @ K).addcmul_(masks.alive, dY @ starts)
        dK = (dS.mT @ Q).addcmul_(masks.survives, V @ ends)
        dV = (S.mT @ dY).add_(K_survives @ ends.mT)
        return _unfold(dQ, q), _unfold(dK, k), _unfold(dV, v), dW.view_as(W), None


def _carry(added: Tensor, W: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """`W <- kept W + added`, chunk after chunk: the W that each begins with `[n, N, V, K]`, and the last."""
    starts = torch.empty_like(added)
    for start, increment, keep in zip(starts, added, kept, strict=True):
        start.copy_(W)
        W = torch.addcmul(increment, keep, start)
    return starts, W


class _Delta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor]:
        K, V, b = _fold(k), _fold(v), _fold(beta)
        P = torch.cat((K, _fold(q)), -2)
        C = K.shape[-2]
        P_alive = P * masks.alive.repeat(1, 1, 2, 1)
        K_alive, Q_alive, K_survives = P_alive[:, :, :C], P_alive[:, :, C:], K * masks.survives
        G = (P @ K.mT).mul_(masks.sees)
        A, S = G[:, :, :C], G[:, :, C:]
        eye = torch.eye(C, dtype=v.dtype, device=v.device).expand_as(A)
        # The inverse and not a solve a chunk: it serves all chunks at once, and their gradients.
        inverse = torch.linalg.solve_triangular(A * b.mT, eye, upper=False, unitriangular=True)
        E, U, starts = torch.empty_like(V), torch.empty_like(V), W.new_empty(len(V), *W.flatten(0, 1).shape)
        state = W.flatten(0, 1)
        for c, start in enumerate(starts):
            start.copy_(state)
            error = torch.baddbmm(V[c], K_alive[c], start.mT, alpha=-1)  # as if the chunk wrote nothing
            torch.bmm(inverse[c], error, out=E[c])
            torch.mul(E[c], b[c], out=U[c])
            state = torch.baddbmm(start * masks.kept[c], U[c].mT, K_survives[c])
        Y = (Q_alive @ starts.mT).add_(S @ U)
        ctx.save_for_backward(q, W, P, P_alive, K_survives, G, inverse, b, E, U, starts, *masks)
        return _unfold(Y, v), state.view_as(W)

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, dy: Tensor, dW: Tensor) -> tuple[Tensor | None, ...]:
        q, W, P, P_alive, K_survives, G, inverse, b, E, U, starts, *rest = ctx.saved_tensors
        masks, C = Masks(*rest), E.shape[-2]
        K, A, S = P[:, :, :C], G[:, :, :C], G[:, :, C:]
        D = torch.cat((torch.empty_like(E), _fold(dy)), -2)  # gradient of (X, Z): -dV above dY
        minus_dV, dY = D[:, :, :C], D[:, :, C:]
        dU = S.mT @ dY
        ends, dW = torch.empty_like(starts), dW.flatten(0, 1)
        to_dV = (inverse * b).neg_()
        for c in reversed(range(len(E))):
            ends[c] = dW
            dU[c].baddbmm_(K_survives[c], ends[c].mT)
            minus_dV[c] = to_dV[c].mT @ dU[c]
            dW = torch.baddbmm(ends[c] * masks.kept[c], D[c].mT, P_alive[c])
        db = (dU.add_(A.mT @ minus_dV) * E).sum(-1, keepdim=True)
        dG = (D @ U.mT).mul_(masks.sees)
        dP = (dG @ K).addcmul_(masks.alive.repeat(1, 1, 2, 1), D @ starts)
        dK = (dG.mT @ P).addcmul_(masks.survives, U @ ends).add_(dP[:, :, :C])
        dv, dbeta = -_unfold(minus_dV, dy), _unfold(db, q[..., :1])
        return _unfold(dP[:, :, C:], q), _unfold(dK, q), dv, dbeta, dW.view_as(W), None
