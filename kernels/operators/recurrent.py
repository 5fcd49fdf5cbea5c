"""The rules whose next step needs the last output, the Delta RNN and `recurrent_delta`, as operators.

The gradient of a slow recurrent weight is the sum over steps and rows of `g dxᵀ`, where dx is the gradient of
the input it was added to; backward writes dx anyway, so one product afterwards is enough.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..native import rules as native
from ..precision import without_autocast
from ..pytorch.stepwise import sum_of_outer, wants_gradient
from .calls import calls_c, dense, gradient, launch, new_kept, rows


@torch.library.custom_op("deltabeast::delta_rnn_forward", mutates_args=())
def _delta_rnn_forward(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, R after the last step; for backward the error, softmax of y before each step, `new_kept`."""
    z, k, v = rows(z, k, v)
    R, y0, reset = dense(R, y0, reset)
    outputs = _delta_rnn_forward_fake(z, k, v, beta, R, y0, reset, keep, backend)
    launch(backend).delta_rnn_forward(z, k, v, beta, R, y0, reset, *outputs)
    return outputs


@_delta_rnn_forward.register_fake
def _delta_rnn_forward_fake(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    error, p = (v.new_empty(v.shape if keep else 0) for _ in range(2))
    return v.new_empty(v.shape), R.new_empty(R.shape), error, p, new_kept(R, len(v), keep, backend)


@torch.library.custom_op("deltabeast::delta_rnn_backward", mutates_args=())
def _delta_rnn_backward(
    k: Tensor,
    beta: Tensor,
    R: Tensor,
    reset: Tensor,
    error: Tensor,
    p: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dR_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of z, k, v, beta, R and y0."""
    (k,), (R, reset) = rows(k), dense(R, reset)
    dy, dR_T = gradient(dy), gradient(dR_T)
    grads = _delta_rnn_backward_fake(k, beta, R, reset, error, p, kept, dy, dR_T, backend)
    launch(backend).delta_rnn_backward(k, beta, R, reset, error, p, kept, dy, dR_T, *grads)
    return grads


@_delta_rnn_backward.register_fake
def _delta_rnn_backward_fake(
    k: Tensor,
    beta: Tensor,
    R: Tensor,
    reset: Tensor,
    error: Tensor,
    p: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dR_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dz, dk, dv = (p.new_empty(p.shape) for _ in range(3))
    return dz, dk, dv, beta.new_empty(beta.shape), R.new_empty(R.shape), p.new_empty(p.shape[1:])


def _delta_rnn_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    _, k, _, beta, R, _, reset, _, ctx.backend = inputs
    ctx.save_for_backward(k, beta, R, reset, *output[2:])


@without_autocast
def _delta_rnn_differentiate(
    ctx: Any, dy: Tensor | None, dR_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    return *_delta_rnn_backward(*ctx.saved_tensors, dy, dR_T, ctx.backend), None, None, None


_delta_rnn_forward.register_autograd(_delta_rnn_differentiate, setup_context=_delta_rnn_save)


@torch.library.custom_op("deltabeast::recurrent_delta_forward", mutates_args=())
def _recurrent_delta_forward(
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
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, W after the last step; for backward g, the q, k, beta used, the error and `new_kept`."""
    q, k, v = rows(q, k, v)
    Rq, Rk, Rv, rb, W, y0, reset = dense(Rq, Rk, Rv, rb, W, y0, reset)
    outputs = _recurrent_delta_forward_fake(q, k, v, beta, Rq, Rk, Rv, rb, W, y0, reset, keep, backend)
    launch(backend).recurrent_delta_forward(q, k, v, beta, Rq, Rk, Rv, rb, W, y0, reset, *outputs)
    return outputs


@_recurrent_delta_forward.register_fake
def _recurrent_delta_forward_fake(
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
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    g, q_used, k_used, beta_used, error = (x.new_empty(x.shape if keep else 0) for x in (v, q, k, beta, v))
    kept = new_kept(W, len(v), keep, backend)
    return v.new_empty(v.shape), W.new_empty(W.shape), g, q_used, k_used, beta_used, error, kept


@torch.library.custom_op("deltabeast::recurrent_delta_backward", mutates_args=())
def _recurrent_delta_backward(
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    reset: Tensor,
    g: Tensor,
    q_used: Tensor,
    k_used: Tensor,
    beta_used: Tensor,
    error: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of q, k, v, beta, W and y0."""
    Rq, Rk, Rv, rb, W, reset = dense(Rq, Rk, Rv, rb, W, reset)
    saved = (Rq, Rk, Rv, rb, W, reset, g, q_used, k_used, beta_used, error, kept)
    inputs = (*saved, gradient(dy), gradient(dW_T))
    grads = _recurrent_delta_backward_fake(*inputs, backend)
    launch(backend).recurrent_delta_backward(*inputs, *grads)
    return grads


@_recurrent_delta_backward.register_fake
def _recurrent_delta_backward_fake(
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    reset: Tensor,
    g: Tensor,
    q_used: Tensor,
    k_used: Tensor,
    beta_used: Tensor,
    error: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dbeta = (x.new_empty(x.shape) for x in (q_used, k_used, g, beta_used))
    return dq, dk, dv, dbeta, W.new_empty(W.shape), g.new_empty(g.shape[1:])


def _recurrent_delta_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    Rq, Rk, Rv, rb, W, _, reset, _, ctx.backend = inputs[4:]
    ctx.save_for_backward(Rq, Rk, Rv, rb, W, reset, *output[2:])


@without_autocast
def recurrent_delta_differentiate(
    ctx: Any, dy: Tensor | None, dW_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    grads = _recurrent_delta_backward(*ctx.saved_tensors, dy, dW_T, ctx.backend)
    dq, dk, dv, dbeta, dW, dy0 = grads
    g = ctx.saved_tensors[6]
    dRq, dRk, dRv, drb = (sum_of_outer(g, dx) for dx in (dq, dk, dv, dbeta.unsqueeze(-1)))
    return dq, dk, dv, dbeta, dRq, dRk, dRv, drb.squeeze(-1), dW, dy0, None, None, None


_recurrent_delta_forward.register_autograd(recurrent_delta_differentiate, setup_context=_recurrent_delta_save)


def delta_rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.delta_rnn` to rounding."""
    inputs = (z, k, v, beta, R, y0)
    if calls_c(backend, *inputs):
        y, R_T = v.new_empty(v.shape), R.new_empty(R.shape)
        native.delta_rnn_forward(*rows(z, k, v), beta, *dense(R, y0, reset), y, R_T, None, None, None)
    else:
        y, R_T, *_ = _delta_rnn_forward(*inputs, reset, wants_gradient(*inputs), backend)
    return y, R_T, y[-1]


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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.recurrent_delta` to rounding."""
    inputs = (q, k, v, beta, Rq, Rk, Rv, rb, W, y0)
    if calls_c(backend, *inputs):
        y, W_T = v.new_empty(v.shape), W.new_empty(W.shape)
        slow_and_states = dense(Rq, Rk, Rv, rb, W, y0, reset)
        native.recurrent_delta_forward(*rows(q, k, v), beta, *slow_and_states, y, W_T, *[None] * 6)
    else:
        y, W_T, *_ = _recurrent_delta_forward(*inputs, reset, wants_gradient(*inputs), backend)
    return y, W_T, y[-1]
