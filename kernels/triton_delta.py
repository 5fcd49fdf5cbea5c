"""Sum rule and delta rule in Triton: one kernel forward, one backward, the fast weights in registers.

Backward needs no fast weights while it walks back. With `error_t = v_t - W_{t-1} k_t` kept by forward,
the gradient dW of W, and with it those of v, beta and half of k's, depend on each other alone:

    dW += dy qᵀ      du = dW k      dv = β du      dk = dWᵀ u      dW -= dv kᵀ

What is left reads the fast weights, and nothing later depends on it. So a second walk, forward, replays
the writes and adds it: `dk -= W_{t-1}ᵀ dv` and `dq = W_tᵀ dy`. No state but the initial one is kept.
The sum rule is the case u = v, without `dv kᵀ` and `W_{t-1}ᵀ dv`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .precision import without_autocast
from .stepwise import wants_gradient
from .triton_launch import blocks, contiguous_rows
from .triton_steps import (
    delta_step,
    load_matrix,
    load_row,
    outer,
    read,
    read_back,
    row,
    store_matrix,
    store_row,
)


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    q,
    k,
    v,
    beta,
    W,
    reset,
    y,
    W_T,
    error,
    q_t,
    q_b,
    q_h,
    k_t,
    k_b,
    k_h,
    v_t,
    v_b,
    v_h,
    beta_t,
    beta_b,
    beta_h,
    T,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DELTA: tl.constexpr,
    KEEP: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    for t in range(T.to(tl.int64)):  # 64-bit time makes 64-bit addresses
        now = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, now)
        q_row = load_row(q + t * q_t, K, BLOCK_K)
        k_row = load_row(k + t * k_t, K, BLOCK_K)
        v_row = load_row(v + t * v_t, V, BLOCK_V)
        if DELTA:
            y_row, now, error_row = delta_step(now, q_row, k_row, v_row, tl.load(beta + t * beta_t))
            if KEEP:
                store_row(error + row(t, b, h) * V, error_row, V, BLOCK_V)
        else:
            now += outer(v_row, k_row)
            y_row = read(now, q_row)
        store_row(y + row(t, b, h) * V, y_row, V, BLOCK_V)
    store_matrix(W_T + row(0, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    q,
    k,
    v,
    beta,
    W,
    reset,
    error,
    dy,
    dW_T,
    dq,
    dk,
    dv,
    dbeta,
    dW,
    q_t,
    q_b,
    q_h,
    k_t,
    k_b,
    k_h,
    v_t,
    v_b,
    v_h,
    beta_t,
    beta_b,
    beta_h,
    T,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DELTA: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    steps = T.to(tl.int64)

    gradient = load_matrix(dW_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    for back in range(steps):
        t = steps - 1 - back
        at = row(t, b, h)
        k_row = load_row(k + t * k_t, K, BLOCK_K)
        gradient += outer(load_row(dy + at * V, V, BLOCK_V), load_row(q + t * q_t, K, BLOCK_K))
        du = read(gradient, k_row)
        if DELTA:
            strength = tl.load(beta + t * beta_t)
            error_row = load_row(error + at * V, V, BLOCK_V)
            dk_row = read_back(gradient, strength * error_row)
            dv_row = strength * du
            tl.store(dbeta + at, tl.sum(du * error_row, 0))
            gradient -= outer(dv_row, k_row)
        else:
            dk_row = read_back(gradient, load_row(v + t * v_t, V, BLOCK_V))
            dv_row = du
        store_row(dk + at * K, dk_row, K, BLOCK_K)
        store_row(dv + at * V, dv_row, V, BLOCK_V)
        gradient = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, gradient)
    store_matrix(dW + row(0, b, h) * V * K, gradient, V, K, BLOCK_V, BLOCK_K)

    tl.debug_barrier()  # dk and dv may come back to other threads than wrote them
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    for t in range(steps):
        at = row(t, b, h)
        now = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, now)
        k_row = load_row(k + t * k_t, K, BLOCK_K)
        if DELTA:
            dk_row = load_row(dk + at * K, K, BLOCK_K) - read_back(now, load_row(dv + at * V, V, BLOCK_V))
            store_row(dk + at * K, dk_row, K, BLOCK_K)
            u = tl.load(beta + t * beta_t) * load_row(error + at * V, V, BLOCK_V)
        else:
            u = load_row(v + t * v_t, V, BLOCK_V)
        now += outer(u, k_row)
        store_row(dq + at * K, read_back(now, load_row(dy + at * V, V, BLOCK_V)), K, BLOCK_K)


@torch.library.custom_op("deltabeast::delta_forward", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, W after the last step, and what backward needs: the error `[T, B, H, V]`, empty if not kept."""
    q, k, v = (contiguous_rows(x) for x in (q, k, v))
    W, reset = W.contiguous(), reset.contiguous()
    T, B, H, _ = v.shape
    y, W_T, error = _forward_fake(q, k, v, beta, W, reset, keep)
    strength = v[..., 0] if beta is None else beta
    strides = (s for x in (q, k, v, strength) for s in x.stride()[:3])
    with torch.cuda.device_of(v):
        forward_kernel[B, H](
            q,
            k,
            v,
            strength,
            W,
            reset,
            y,
            W_T,
            error,
            *strides,
            T,
            DELTA=beta is not None,
            KEEP=keep,
            **blocks(W),
        )
    return y, W_T, error


@_forward.register_fake
def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    error = v.new_empty(v.shape if keep and beta is not None else 0)
    return v.new_empty(v.shape), W.new_empty(W.shape), error


@torch.library.custom_op("deltabeast::delta_backward", mutates_args=())
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    W: Tensor,
    reset: Tensor,
    error: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta (of the sum rule: empty) and W."""
    q, k, v = (contiguous_rows(x) for x in (q, k, v))
    W, reset = W.contiguous(), reset.contiguous()
    T, B, H, _ = v.shape
    dy = v.new_zeros(v.shape) if dy is None else dy.contiguous()
    dW_T = torch.zeros_like(W) if dW_T is None else dW_T.contiguous()
    grads = _backward_fake(q, k, v, beta, W, reset, error, dy, dW_T)
    strength = v[..., 0] if beta is None else beta
    strides = (s for x in (q, k, v, strength) for s in x.stride()[:3])
    with torch.cuda.device_of(v):
        backward_kernel[B, H](
            q,
            k,
            v,
            strength,
            W,
            reset,
            error,
            dy,
            dW_T,
            *grads,
            *strides,
            T,
            DELTA=beta is not None,
            **blocks(W),
        )
    return grads


@_backward.register_fake
def _backward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    W: Tensor,
    reset: Tensor,
    error: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dbeta = v.new_empty(0 if beta is None else beta.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbeta, W.new_empty(W.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, beta, W, reset, _ = inputs
    ctx.save_for_backward(q, k, v, beta, W, reset, output[-1])


@without_autocast
def _differentiate(
    ctx: Any, dy: Tensor | None, dW_T: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    dq, dk, dv, dbeta, dW = _backward(*ctx.saved_tensors, dy, dW_T)
    return dq, dk, dv, dbeta if dbeta.numel() else None, dW, None, None


_forward.register_autograd(_differentiate, setup_context=_save)


def sum_rule(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Equals `reference.sum_rule` to rounding."""
    y, W_T, _ = _forward(q, k, v, None, W, reset, wants_gradient(q, k, v, W))
    return y, W_T


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Equals `reference.delta_rule` to rounding."""
    y, W_T, _ = _forward(q, k, v, beta, W, reset, wants_gradient(q, k, v, beta, W))
    return y, W_T
