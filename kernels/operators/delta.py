"""The sum rule and the delta rule as operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..native import rules as native
from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from .calls import calls_c, dense, gradient, launch, rows


@torch.library.custom_op("deltabeast::delta_forward", mutates_args=())
def _delta_forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor, keep: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, W after the last step, and for backward the error `[T, B, H, V]`, empty unless `keep`."""
    q, k, v = rows(q, k, v)
    W, reset = dense(W, reset)
    outputs = _delta_forward_fake(q, k, v, beta, W, reset, keep, backend)
    launch(backend).delta_forward(q, k, v, beta, W, reset, *outputs)
    return outputs


@_delta_forward.register_fake
def _delta_forward_fake(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor, keep: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    error = v.new_empty(v.shape if keep and beta is not None else 0)
    return v.new_empty(v.shape), W.new_empty(W.shape), error


@torch.library.custom_op("deltabeast::delta_backward", mutates_args=())
def _delta_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    W: Tensor,
    reset: Tensor,
    error: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of q, k, v, beta (empty for the sum rule) and W."""
    q, k, v = rows(q, k, v)
    W, reset = dense(W, reset)
    dy, dW_T = gradient(dy), gradient(dW_T)
    grads = _delta_backward_fake(q, k, v, beta, W, reset, error, dy, dW_T, backend)
    launch(backend).delta_backward(q, k, v, beta, W, reset, error, dy, dW_T, *grads)
    return grads


@_delta_backward.register_fake
def _delta_backward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    W: Tensor,
    reset: Tensor,
    error: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dbeta = v.new_empty(0 if beta is None else beta.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbeta, W.new_empty(W.shape)


def _delta_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[-1])


@without_autocast
def _delta_differentiate(
    ctx: Any, dy: Tensor | None, dW_T: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    dq, dk, dv, dbeta, dW = _delta_backward(*ctx.saved_tensors, dy, dW_T, ctx.backend)
    return dq, dk, dv, dbeta if dbeta.numel() else None, dW, None, None, None


_delta_forward.register_autograd(_delta_differentiate, setup_context=_delta_save)


def sum_rule(
    q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """Equals `reference.sum_rule` to rounding."""
    return _delta(q, k, v, None, W, reset, backend)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """Equals `reference.delta_rule` to rounding."""
    return _delta(q, k, v, beta, W, reset, backend)


def _delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    floats = (q, k, v, W) if beta is None else (q, k, v, beta, W)
    if calls_c(backend, *floats):
        y, W_T = v.new_empty(v.shape), W.new_empty(W.shape)
        native.delta_forward(*rows(q, k, v), beta, *dense(W, reset), y, W_T, None)
    else:
        y, W_T, _ = _delta_forward(q, k, v, beta, W, reset, wants_gradient(*floats), backend)
    return y, W_T
