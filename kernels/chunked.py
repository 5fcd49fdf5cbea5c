"""The sum rule and the delta rule over a chunk of C steps as a few matrix products.

Inside a chunk time is a matrix dimension. With rows K, Q `[C, K]`, V `[C, V]` of one head and the state W_0
at the chunk's start, the writes U (rows u_t, so that W_t = W_{t-1} + u_t k_tᵀ) solve a triangular system:

    A = M⁻ ∘ (diag(β) K Kᵀ)                  what earlier writes left under later keys
    (I + A) U = diag(β) (V - diag(e) K W_0ᵀ)
    Y = diag(e) Q W_0ᵀ + (M ∘ Q Kᵀ) U
    W_C = e_C W_0 + Uᵀ diag(f) K

Resets enter as masks alone: M_ti says that step t sees the write of step i <= t of the same episode (M⁻
without the diagonal), e_t that step t still sees W_0, f_t that the write of step t reaches the chunk's end.
The sum rule is the case U = V. Chunks follow each other in a loop that carries W.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import without_autocast

CHUNK = 64
"""Steps a chunk. The published unroll of 50 is one chunk; longer ones grow linearly in T."""


class Masks(NamedTuple):
    """Who sees whom in one chunk, in the dtype of the data; a trailing 1 lets them scale rows."""

    sees: Tensor  # M [B, 1, C, C], diagonal included
    alive: Tensor  # e [B, 1, C, 1]
    survives: Tensor  # f [B, 1, C, 1]
    kept: Tensor  # e at the last step [B, 1, 1, 1]


def sum_rule(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Equals `reference.sum_rule` to rounding."""
    W, broken = _set_aside_broken(W)
    outputs = []
    for span in _spans(q.shape[0]):
        masks = _masks(reset[span], W.dtype)
        y, W = _SumChunk.apply(_heads_first(q[span]), _heads_first(k[span]), _heads_first(v[span]), W, masks)
        y, W, broken = _mark_broken(y, W, masks, broken)
        outputs.append(y)
    return _join(outputs), W


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.delta_rule` to rounding."""
    W, broken = _set_aside_broken(W)
    outputs = []
    for span in _spans(q.shape[0]):
        masks = _masks(reset[span], W.dtype)
        b = beta[span].permute(1, 2, 0).unsqueeze(-1)
        y, W = _DeltaChunk.apply(
            _heads_first(q[span]), _heads_first(k[span]), _heads_first(v[span]), b, W, masks
        )
        y, W, broken = _mark_broken(y, W, masks, broken)
        outputs.append(y)
    return _join(outputs), W


def _spans(steps: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, steps)) for start in range(0, steps, CHUNK)]


def _heads_first(x: Tensor) -> Tensor:
    """`[C, B, H, N]` -> `[B, H, C, N]`, contiguous for the batched products."""
    return x.permute(1, 2, 0, 3).contiguous()


def _join(outputs: list[Tensor]) -> Tensor:
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
    return y.permute(2, 0, 1, 3)


def _masks(reset: Tensor, dtype: torch.dtype) -> Masks:
    segment = reset.cumsum(0).T  # [B, C]: how many episodes have begun
    same = segment.unsqueeze(-1) == segment.unsqueeze(-2)
    alive = segment == 0
    survives = segment == segment[:, -1:]
    return Masks(
        same.tril().to(dtype).unsqueeze(1),
        alive.to(dtype)[:, None, :, None],
        survives.to(dtype)[:, None, :, None],
        alive[:, -1].to(dtype)[:, None, None, None],
    )


def _set_aside_broken(W: Tensor) -> tuple[Tensor, Tensor | None]:
    """Zero in place of fast weights that hold inf or nan, and which `[B, H, 1, 1]` they were (None: none).

    The masks multiply, and 0 * nan is nan: a broken memory would outlive its reset, and taint the gradients.
    """
    broken = ~W.detach().sum((-1, -2), keepdim=True).isfinite()
    if W.device.type == "cpu" and not broken.any():
        return W, None
    return torch.where(broken, torch.zeros((), dtype=W.dtype, device=W.device), W), broken


def _mark_broken(
    y: Tensor, W: Tensor, masks: Masks, broken: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return nan wherever a broken initial state is still alive."""
    if broken is None:
        return y, W, None
    y = torch.where(broken & (masks.alive > 0), torch.nan, y)
    broken = broken & (masks.kept > 0)
    return y, torch.where(broken, torch.nan, W), broken


class _SumChunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, Q: Tensor, K: Tensor, V: Tensor, W: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
        S = (Q @ K.mT).mul_(masks.sees)
        Y = (Q @ W.mT).mul_(masks.alive).add_(S @ V)
        ctx.save_for_backward(Q, K, V, W, S, *masks)
        return Y, torch.addcmul((V * masks.survives).mT @ K, masks.kept, W)

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, dY: Tensor, dW_C: Tensor) -> tuple[Tensor | None, ...]:
        Q, K, V, W, S, *rest = ctx.saved_tensors
        masks, dY = Masks(*rest), dY.contiguous()
        dY_alive = dY * masks.alive
        dS = (dY @ V.mT).mul_(masks.sees)
        dQ = (dS @ K).add_(dY_alive @ W)
        dK = (dS.mT @ Q).add_((V @ dW_C).mul_(masks.survives))
        dV = (S.mT @ dY).add_((K @ dW_C.mT).mul_(masks.survives))
        dW = (dY_alive.mT @ Q).addcmul_(masks.kept, dW_C)
        return dQ, dK, dV, dW, None


class _DeltaChunk(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, Q: Tensor, K: Tensor, V: Tensor, b: Tensor, W: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor]:
        KK = K @ K.mT
        # The solver takes the diagonal as 1 and ignores what lies above: M⁻ needs no mask of its own.
        A = (KK * masks.sees).mul_(b)
        error = V - (K @ W.mT).mul_(masks.alive)  # v_t - e_t W_0 k_t
        U = torch.linalg.solve_triangular(A, error * b, upper=False, unitriangular=True)
        S = (Q @ K.mT).mul_(masks.sees)
        Y = (Q @ W.mT).mul_(masks.alive).add_(S @ U)
        ctx.save_for_backward(Q, K, b, W, KK, A, error, U, S, *masks)
        return Y, torch.addcmul((U * masks.survives).mT @ K, masks.kept, W)

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, dY: Tensor, dW_C: Tensor) -> tuple[Tensor | None, ...]:
        Q, K, b, W, KK, A, error, U, S, *rest = ctx.saved_tensors
        masks, dY = Masks(*rest), dY.contiguous()
        dY_alive = dY * masks.alive
        dU = (S.mT @ dY).add_((K @ dW_C.mT).mul_(masks.survives))
        dE = torch.linalg.solve_triangular(A.mT, dU, upper=True, unitriangular=True)  # d(diag(b) error)
        dA = (dE @ U.mT).mul_(masks.sees).tril_(-1).neg_()
        dS = (dY @ U.mT).mul_(masks.sees)
        db = (dE * error).sum(-1, keepdim=True).add_((dA * KK).sum(-1, keepdim=True))
        dV = dE * b
        G = dA.mul_(b)
        dV_alive = dV * masks.alive
        dQ = (dS @ K).add_(dY_alive @ W)
        dK = (G @ K).add_(G.mT @ K).add_(dS.mT @ Q).sub_(dV_alive @ W)
        dK.add_((U @ dW_C).mul_(masks.survives))
        dW = (dY_alive.mT @ Q).sub_(dV_alive.mT @ K).addcmul_(masks.kept, dW_C)
        return dQ, dK, dV, db, dW, None
