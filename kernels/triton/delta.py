"""Sum rule and delta rule in Triton: one kernel forward, one backward, the fast weights in registers.

Backward needs no fast weights while it walks back. With `error_t = v_t - W_{t-1} k_t` kept by forward, the
gradient dW of W, those of v and beta, and half of k's depend only on one another:

    dW += dy qᵀ      du = dW k      dv = β du      dk = dWᵀ u      dW -= dv kᵀ

The remaining terms read the fast weights, and nothing later depends on them. So a second walk, forward,
replays the writes and adds them: `dk -= W_{t-1}ᵀ dv` and `dq = W_tᵀ dy`. Only the initial state is kept.
The sum rule is the case u = v, without `dv kᵀ` and `W_{t-1}ᵀ dv`.
"""

import triton
import triton.language as tl

from .steps import (
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
    ERASES: tl.constexpr,
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
        if ERASES:
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
    ERASES: tl.constexpr,
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
        if ERASES:
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

    tl.debug_barrier()  # dk and dv may be read by threads other than those that wrote them
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    for t in range(steps):
        at = row(t, b, h)
        now = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, now)
        k_row = load_row(k + t * k_t, K, BLOCK_K)
        if ERASES:
            dk_row = load_row(dk + at * K, K, BLOCK_K) - read_back(now, load_row(dv + at * V, V, BLOCK_V))
            store_row(dk + at * K, dk_row, K, BLOCK_K)
            u = tl.load(beta + t * beta_t) * load_row(error + at * V, V, BLOCK_V)
        else:
            u = load_row(v + t * v_t, V, BLOCK_V)
        now += outer(u, k_row)
        store_row(dq + at * K, read_back(now, load_row(dy + at * V, V, BLOCK_V)), K, BLOCK_K)
