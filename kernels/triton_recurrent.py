"""The Delta RNN and the Recurrent Delta Net in Triton: one program walks a head of a row through all steps.

Their reads decide later reads and writes, so backward needs the fast weights of every step, from the last to
the first. Forward keeps every `SPACING`-th; backward replays the writes between two of them into a scratch
memory of its own, which stays in the cache, and walks back over it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .precision import without_autocast
from .stepwise import SPACING
from .triton_launch import blocks, wants_gradient
from .triton_steps import (
    delta_step,
    delta_step_backward,
    load_matrix,
    load_row,
    outer,
    read,
    read_back,
    row,
    softmax,
    softmax_backward,
    store_matrix,
    store_row,
    tanh,
)


@triton.jit
def replay(kept, scratch, reset, k, error, beta, mark, T, SPACING: tl.constexpr,
           V: tl.constexpr, K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Write what each step from `mark` to the next one read before its write into `scratch`."""
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    W = load_matrix(kept + row(mark, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    store_matrix(scratch + row(0, b, h) * V * K, W, V, K, BLOCK_V, BLOCK_K)
    for i in range(1, SPACING):
        t = mark * SPACING + i
        if t < T:
            at = row(t - 1, b, h)
            u = tl.load(beta + at) * load_row(error + at * V, V, BLOCK_V)
            W += outer(u, load_row(k + at * K, K, BLOCK_K))
            W = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, W)
            store_matrix(scratch + row(i, b, h) * V * K, W, V, K, BLOCK_V, BLOCK_K)
    tl.debug_barrier()  # other threads may read than wrote


@triton.jit(do_not_specialize=["T"])
def rnn_forward_kernel(z, k, v, beta, R, y0, reset, y, R_T, kept, error, T, SPACING: tl.constexpr,
                       KEEP: tl.constexpr, V: tl.constexpr, K: tl.constexpr,
                       BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    now = load_matrix(R + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    y_row = load_row(y0 + row(0, b, h) * V, V, BLOCK_V)
    for t in range(T.to(tl.int64)):
        at = row(t, b, h)
        begins = tl.load(reset + t * tl.num_programs(0) + b)
        now = tl.where(begins, 0.0, now)
        if KEEP and t % SPACING == 0:
            store_matrix(kept + row(t // SPACING, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)
        p = softmax(tl.where(begins, 0.0, y_row), V, BLOCK_V)
        k_row, v_row = load_row(k + at * K, K, BLOCK_K), load_row(v + at * V, V, BLOCK_V)
        read_row, now, error_row = delta_step(now, p, k_row, v_row, tl.load(beta + at))
        y_row = load_row(z + at * V, V, BLOCK_V) + read_row
        store_row(y + at * V, y_row, V, BLOCK_V)
        if KEEP:
            store_row(error + at * V, error_row, V, BLOCK_V)
    store_matrix(R_T + row(0, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)


@triton.jit(do_not_specialize=["T"])
def rnn_backward_kernel(k, beta, before, reset, kept, error, dy, dR_T, dz, dk, dv, dbeta, dR, dy0, scratch, T,
                        SPACING: tl.constexpr, V: tl.constexpr, K: tl.constexpr,
                        BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    steps = T.to(tl.int64)
    gradient = load_matrix(dR_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    dy_row = tl.zeros([BLOCK_V], tl.float32)
    marks = (steps + SPACING - 1) // SPACING
    for back in range(marks):
        mark = marks - 1 - back
        replay(kept, scratch, reset, k, error, beta, mark, steps, SPACING, V, K, BLOCK_V, BLOCK_K)
        for i in range(SPACING):
            t = mark * SPACING + SPACING - 1 - i
            if t < steps:
                at = row(t, b, h)
                begins = tl.load(reset + t * tl.num_programs(0) + b)
                W = load_matrix(scratch + row(SPACING - 1 - i, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
                p = softmax(tl.where(begins, 0.0, load_row(before + at * V, V, BLOCK_V)), V, BLOCK_V)
                dy_row += load_row(dy + at * V, V, BLOCK_V)
                store_row(dz + at * V, dy_row, V, BLOCK_V)
                k_row, error_row = load_row(k + at * K, K, BLOCK_K), load_row(error + at * V, V, BLOCK_V)
                dp, dk_row, dv_row, dbeta_value, gradient = delta_step_backward(
                    gradient, W, p, k_row, tl.load(beta + at), error_row, dy_row
                )
                store_row(dk + at * K, dk_row, K, BLOCK_K)
                store_row(dv + at * V, dv_row, V, BLOCK_V)
                tl.store(dbeta + at, dbeta_value)
                gradient = tl.where(begins, 0.0, gradient)
                dy_row = tl.where(begins, 0.0, softmax_backward(dp, p))
        tl.debug_barrier()  # the next replay writes where this one was read
    store_matrix(dR + row(0, b, h) * V * K, gradient, V, K, BLOCK_V, BLOCK_K)
    store_row(dy0 + row(0, b, h) * V, dy_row, V, BLOCK_V)


@triton.jit(do_not_specialize=["T"])
def rdn_forward_kernel(x, Rq, Rk, Rv, rb, W, y0, reset, y, W_T, kept, q, k, error, beta, T,
                       SPACING: tl.constexpr, KEEP: tl.constexpr, V: tl.constexpr, K: tl.constexpr,
                       BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    Rq_h = load_matrix(Rq + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rk_h = load_matrix(Rk + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rv_h = load_matrix(Rv + h * V * V, V, V, BLOCK_V, BLOCK_V)
    rb_h = load_row(rb + h * V, V, BLOCK_V)
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    y_row = load_row(y0 + row(0, b, h) * V, V, BLOCK_V)
    for t in range(T.to(tl.int64)):
        at = row(t, b, h)
        x_row = x + at * (2 * K + V + 1)
        begins = tl.load(reset + t * tl.num_programs(0) + b)
        now = tl.where(begins, 0.0, now)
        if KEEP and t % SPACING == 0:
            store_matrix(kept + row(t // SPACING, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)
        g = tanh(tl.where(begins, 0.0, y_row))
        q_row = softmax(load_row(x_row, K, BLOCK_K) + read_back(Rq_h, g), K, BLOCK_K)
        k_row = softmax(load_row(x_row + K, K, BLOCK_K) + read_back(Rk_h, g), K, BLOCK_K)
        v_row = load_row(x_row + 2 * K, V, BLOCK_V) + read_back(Rv_h, g)
        strength = tl.sigmoid(tl.load(x_row + 2 * K + V) + tl.sum(g * rb_h, 0))
        y_row, now, error_row = delta_step(now, q_row, k_row, v_row, strength)
        store_row(y + at * V, y_row, V, BLOCK_V)
        if KEEP:
            store_row(q + at * K, q_row, K, BLOCK_K)
            store_row(k + at * K, k_row, K, BLOCK_K)
            store_row(error + at * V, error_row, V, BLOCK_V)
            tl.store(beta + at, strength)
    store_matrix(W_T + row(0, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)


@triton.jit(do_not_specialize=["T"])
def rdn_backward_kernel(Rq, Rk, Rv, rb, g, reset, kept, q, k, error, beta, dy, dW_T, dx, dW, dy0, scratch, T,
                        SPACING: tl.constexpr, V: tl.constexpr, K: tl.constexpr,
                        BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    Rq_h = load_matrix(Rq + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rk_h = load_matrix(Rk + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rv_h = load_matrix(Rv + h * V * V, V, V, BLOCK_V, BLOCK_V)
    rb_h = load_row(rb + h * V, V, BLOCK_V)
    steps = T.to(tl.int64)
    gradient = load_matrix(dW_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    dy_row = tl.zeros([BLOCK_V], tl.float32)
    marks = (steps + SPACING - 1) // SPACING
    for back in range(marks):
        mark = marks - 1 - back
        replay(kept, scratch, reset, k, error, beta, mark, steps, SPACING, V, K, BLOCK_V, BLOCK_K)
        for i in range(SPACING):
            t = mark * SPACING + SPACING - 1 - i
            if t < steps:
                at = row(t, b, h)
                begins = tl.load(reset + t * tl.num_programs(0) + b)
                before = load_matrix(scratch + row(SPACING - 1 - i, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
                q_row, k_row = load_row(q + at * K, K, BLOCK_K), load_row(k + at * K, K, BLOCK_K)
                strength, error_row = tl.load(beta + at), load_row(error + at * V, V, BLOCK_V)
                dy_row += load_row(dy + at * V, V, BLOCK_V)
                dq, dk, dv, dbeta, gradient = delta_step_backward(
                    gradient, before, q_row, k_row, strength, error_row, dy_row
                )
                dq, dk = softmax_backward(dq, q_row), softmax_backward(dk, k_row)
                dbeta *= strength * (1 - strength)
                dx_row = dx + at * (2 * K + V + 1)
                store_row(dx_row, dq, K, BLOCK_K)
                store_row(dx_row + K, dk, K, BLOCK_K)
                store_row(dx_row + 2 * K, dv, V, BLOCK_V)
                tl.store(dx_row + 2 * K + V, dbeta)
                g_row = load_row(g + at * V, V, BLOCK_V)
                dg = read(Rq_h, dq) + read(Rk_h, dk) + read(Rv_h, dv) + dbeta * rb_h
                gradient = tl.where(begins, 0.0, gradient)
                dy_row = tl.where(begins, 0.0, dg * (1 - g_row * g_row))
        tl.debug_barrier()  # the next replay writes where this one was read
    store_matrix(dW + row(0, b, h) * V * K, gradient, V, K, BLOCK_V, BLOCK_K)
    store_row(dy0 + row(0, b, h) * V, dy_row, V, BLOCK_V)


def _kept(W: Tensor, steps: int, keep: bool) -> Tensor:
    return W.new_empty(-(-steps // SPACING) if keep else 0, *W.shape)


def _scratch(W: Tensor) -> Tensor:
    return W.new_empty(SPACING, *W.shape)


def _outputs_before(y: Tensor, y0: Tensor) -> Tensor:
    return torch.cat((y0.unsqueeze(0), y[:-1]))


@torch.library.custom_op("deltabeast::delta_rnn", mutates_args=())
def _rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, R after the last step, and what backward needs: every SPACING-th R, and the errors."""
    inputs = (x.contiguous() for x in (z, k, v, beta, R, y0, reset))
    outputs = _rnn_fake(z, k, v, beta, R, y0, reset, keep)
    rnn_forward_kernel[R.shape[:2]](*inputs, *outputs, len(z), SPACING=SPACING, KEEP=keep, **blocks(R))
    return outputs


@_rnn.register_fake
def _rnn_fake(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    error = v.new_empty(v.shape if keep else 0)
    return z.new_empty(z.shape), R.new_empty(R.shape), _kept(R, len(z), keep), error


@torch.library.custom_op("deltabeast::delta_rnn_backward", mutates_args=())
def _rnn_backward(
    k: Tensor,
    beta: Tensor,
    before: Tensor,
    reset: Tensor,
    kept: Tensor,
    error: Tensor,
    dy: Tensor,
    dR: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of z, k, v, beta, R and y0."""
    inputs = (x.contiguous() for x in (k, beta, before, reset, kept, error, dy, dR))
    grads = _rnn_backward_fake(k, beta, before, reset, kept, error, dy, dR)
    rnn_backward_kernel[dR.shape[:2]](*inputs, *grads, _scratch(dR), len(k), SPACING=SPACING, **blocks(dR))
    return grads


@_rnn_backward.register_fake
def _rnn_backward_fake(
    k: Tensor,
    beta: Tensor,
    before: Tensor,
    reset: Tensor,
    kept: Tensor,
    error: Tensor,
    dy: Tensor,
    dR: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    like = (dy, k, dy, beta, dR, before[0])
    dz, dk, dv, dbeta, dR, dy0 = (x.new_empty(x.shape) for x in like)
    return dz, dk, dv, dbeta, dR, dy0


def _rnn_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, k, _, beta, _, y0, reset, _ = inputs
    y, _, kept, error = output
    ctx.save_for_backward(k, beta, y, y0, reset, kept, error)


@without_autocast
def _rnn_differentiate(ctx: Any, dy: Tensor, dR: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    k, beta, y, y0, reset, kept, error = ctx.saved_tensors
    return *_rnn_backward(k, beta, _outputs_before(y, y0), reset, kept, error, dy, dR), None, None


_rnn.register_autograd(_rnn_differentiate, setup_context=_rnn_save)


def delta_rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.delta_rnn` to rounding."""
    y, R_T, *_ = _rnn(z, k, v, beta, R, y0, reset, wants_gradient(z, k, v, beta, R, y0))
    return y, R_T, y[-1]


@torch.library.custom_op("deltabeast::recurrent_delta", mutates_args=())
def _rdn(
    x: Tensor,
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y, W after the last step, and what backward needs: every SPACING-th W, q, k, the errors and beta."""
    inputs = (part.contiguous() for part in (x, Rq, Rk, Rv, rb, W, y0, reset))
    outputs = _rdn_fake(x, Rq, Rk, Rv, rb, W, y0, reset, keep)
    rdn_forward_kernel[W.shape[:2]](*inputs, *outputs, len(x), SPACING=SPACING, KEEP=keep, **blocks(W))
    return outputs


@_rdn.register_fake
def _rdn_fake(
    x: Tensor,
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    V, K = W.shape[2:]
    q, k, error = (x.new_empty((*x.shape[:3], size) if keep else 0) for size in (K, K, V))
    beta = x.new_empty(x.shape[:3] if keep else 0)
    y = x.new_empty(*x.shape[:3], V)
    return y, W.new_empty(W.shape), _kept(W, len(x), keep), q, k, error, beta


@torch.library.custom_op("deltabeast::recurrent_delta_backward", mutates_args=())
def _rdn_backward(
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    g: Tensor,
    reset: Tensor,
    kept: Tensor,
    q: Tensor,
    k: Tensor,
    error: Tensor,
    beta: Tensor,
    dy: Tensor,
    dW: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, W and y0."""
    arguments = (Rq, Rk, Rv, rb, g, reset, kept, q, k, error, beta, dy, dW)
    grads = _rdn_backward_fake(*arguments)
    inputs = (part.contiguous() for part in arguments)
    rdn_backward_kernel[dW.shape[:2]](*inputs, *grads, _scratch(dW), len(g), SPACING=SPACING, **blocks(dW))
    return grads


@_rdn_backward.register_fake
def _rdn_backward_fake(
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    g: Tensor,
    reset: Tensor,
    kept: Tensor,
    q: Tensor,
    k: Tensor,
    error: Tensor,
    beta: Tensor,
    dy: Tensor,
    dW: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    size = 2 * q.shape[-1] + dy.shape[-1] + 1
    return dy.new_empty(*dy.shape[:3], size), dW.new_empty(dW.shape), dy.new_empty(dy.shape[1:])


def _rdn_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, Rq, Rk, Rv, rb, _, y0, reset, _ = inputs
    y, _, *kept = output
    ctx.save_for_backward(Rq, Rk, Rv, rb, y, y0, reset, *kept)


@without_autocast
def _rdn_differentiate(ctx: Any, dy: Tensor, dW: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    Rq, Rk, Rv, rb, y, y0, reset, *kept = ctx.saved_tensors
    g = _outputs_before(y, y0).masked_fill(reset[:, :, None, None], 0).tanh()
    dx, dW, dy0 = _rdn_backward(Rq, Rk, Rv, rb, g, reset, *kept, dy, dW)
    K, V = Rq.shape[-1], Rv.shape[-1]
    dR = torch.einsum("tbhv,tbhn->hvn", g, dx)
    dRq, dRk, dRv, drb = dR.split((K, K, V, 1), -1)
    return dx, dRq, dRk, dRv, drb.squeeze(-1), dW, dy0, None, None


_rdn.register_autograd(_rdn_differentiate, setup_context=_rdn_save)


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
    keep = wants_gradient(x, Rq, Rk, Rv, rb, W, y0)
    y, W_T, *_ = _rdn(x, Rq, Rk, Rv, rb, W, y0, reset, keep)
    return y, W_T, y[-1]
