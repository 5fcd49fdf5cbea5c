"""The rules whose fast weights decay, and the one whose writes have momentum, as operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..native import rules as native
from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from .calls import calls_c, dense, gradient, launch, new_kept, rows


@torch.library.custom_op("deltabeast::gated_forward", mutates_args=())
def _gated_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, W after the last step; for backward the error `[T, B, H, V]`, if `keep`, and `new_kept`."""
    q, k, v, decay = *rows(q, k, v), _rates(beta, decay)
    W, reset = dense(W, reset)
    outputs = _gated_forward_fake(q, k, v, beta, decay, W, reset, keep, backend)
    launch(backend).gated_forward(q, k, v, beta, decay, W, reset, *outputs)
    return outputs


@_gated_forward.register_fake
def _gated_forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    error = v.new_empty(v.shape if keep and beta is not None else 0)
    return v.new_empty(v.shape), W.new_empty(W.shape), error, new_kept(W, len(v), keep, backend)


@torch.library.custom_op("deltabeast::gated_backward", mutates_args=())
def _gated_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    y: Tensor,
    W_T: Tensor,
    error: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of q, k, v, beta (empty without it), decay and W."""
    q, k, v, decay = *rows(q, k, v), _rates(beta, decay)
    W, reset = dense(W, reset)
    inputs = (q, k, v, beta, decay, W, reset, y, W_T, error, kept, gradient(dy), gradient(dW_T))
    grads = _gated_backward_fake(*inputs, backend)
    launch(backend).gated_backward(*inputs, *grads)
    return grads


@_gated_backward.register_fake
def _gated_backward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    y: Tensor,
    W_T: Tensor,
    error: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dbeta = v.new_empty(0 if beta is None else beta.shape)
    dq, dk, dv, ddecay, dW = (x.new_empty(x.shape) for x in (q, k, v, decay, W))
    return dq, dk, dv, dbeta, ddecay, dW


def _gated_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, ctx.backend = inputs
    ctx.save_for_backward(*tensors, *output)


@without_autocast
def _gated_differentiate(
    ctx: Any, dy: Tensor | None, dW_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    dq, dk, dv, dbeta, ddecay, dW = _gated_backward(*ctx.saved_tensors, dy, dW_T, ctx.backend)
    return dq, dk, dv, dbeta if dbeta.numel() else None, ddecay, dW, None, None, None


_gated_forward.register_autograd(_gated_differentiate, setup_context=_gated_save)


@torch.library.custom_op("deltabeast::momentum_forward", mutates_args=())
def _momentum_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, W, C after the last step; for backward what was found under k and `new_kept` of W and C."""
    q, k, v = rows(q, k, v)
    W, C, reset = dense(W, C, reset)
    outputs = _momentum_forward_fake(q, k, v, beta, decay, momentum, W, C, reset, keep, backend)
    launch(backend).momentum_forward(q, k, v, beta, decay, momentum, W, C, reset, *outputs)
    return outputs


@_momentum_forward.register_fake
def _momentum_forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    y, W_T, C_T = (x.new_empty(x.shape) for x in (v, W, C))
    kept, kept_C = (new_kept(x, len(v), keep, backend) for x in (W, C))
    return y, W_T, C_T, v.new_empty(v.shape if keep else 0), kept, kept_C


@torch.library.custom_op("deltabeast::momentum_backward", mutates_args=())
def _momentum_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    y: Tensor,
    W_T: Tensor,
    C_T: Tensor,
    found: Tensor,
    kept: Tensor,
    kept_C: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    dC_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of q, k, v, beta, decay, momentum, W and C."""
    q, k, v = rows(q, k, v)
    W, C, reset = dense(W, C, reset)
    ends = gradient(dy), gradient(dW_T), gradient(dC_T)
    inputs = (q, k, v, beta, decay, momentum, W, C, reset, y, W_T, C_T, found, kept, kept_C, *ends)
    grads = _momentum_backward_fake(*inputs, backend)
    launch(backend).momentum_backward(*inputs, *grads)
    return grads


@_momentum_backward.register_fake
def _momentum_backward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    y: Tensor,
    W_T: Tensor,
    C_T: Tensor,
    found: Tensor,
    kept: Tensor,
    kept_C: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    dC_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dbeta = (x.new_empty(x.shape) for x in (q, k, v, beta))
    ddecay, dmomentum, dW, dC = (x.new_empty(x.shape) for x in (decay, momentum, W, C))
    return dq, dk, dv, dbeta, ddecay, dmomentum, dW, dC


def _momentum_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, ctx.backend = inputs
    ctx.save_for_backward(*tensors, *output)


@without_autocast
def _momentum_differentiate(
    ctx: Any, dy: Tensor | None, dW_T: Tensor | None, dC_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    return *_momentum_backward(*ctx.saved_tensors, dy, dW_T, dC_T, ctx.backend), None, None, None


_momentum_forward.register_autograd(_momentum_differentiate, setup_context=_momentum_save)


def gated_sum(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, W: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """Equals `reference.gated_sum` to rounding."""
    return _gated(q, k, v, None, decay, W, reset, backend)


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, W: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """Equals `reference.gated_delta` to rounding."""
    return _gated(q, k, v, beta, decay, W, reset, backend)


def _gated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    W: Tensor,
    reset: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor]:
    floats = (q, k, v, decay, W) if beta is None else (q, k, v, beta, decay, W)
    if calls_c(backend, *floats):
        y, W_T = v.new_empty(v.shape), W.new_empty(W.shape)
        native.gated_forward(*rows(q, k, v), beta, _rates(beta, decay), *dense(W, reset), y, W_T, None, None)
    else:
        y, W_T, *_ = _gated_forward(q, k, v, beta, decay, W, reset, wants_gradient(*floats), backend)
    return y, W_T


def _rates(beta: Tensor | None, decay: Tensor) -> Tensor:
    """Make the last dimension of decay contiguous where it is one of numbers for each row of W."""
    return decay if beta is not None else rows(decay)[0]


def momentum_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.momentum_delta` to rounding."""
    inputs = (q, k, v, beta, decay, momentum, W, C)
    if calls_c(backend, *inputs):
        y, W_T, C_T = (x.new_empty(x.shape) for x in (v, W, C))
        q, k, v = rows(q, k, v)
        native.momentum_forward(q, k, v, beta, decay, momentum, *dense(W, C, reset), y, W_T, C_T, *[None] * 3)
    else:
        y, W_T, C_T, *_ = _momentum_forward(*inputs, reset, wants_gradient(*inputs), backend)
    return y, W_T, C_T
