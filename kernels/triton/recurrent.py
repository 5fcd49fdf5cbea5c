"""Delta RNN and Recurrent Delta Net in Triton: one kernel forward and one backward for each.

Here the gradient of the output needs the fast weights of every step, from last to first. Forward keeps every
`SPACING`-th; backward replays the writes in between into a buffer of `SPACING` matrices per program, small
enough to stay in the GPU's cache, and walks back over it.

The slow recurrent weights stay in registers.
"""

import triton
import triton.language as tl

from .steps import (
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
def replay(
    W,
    k,
    beta,
    error,
    reset,
    buffer,
    start,
    stop,
    k_t,
    beta_t,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MATRICES: tl.constexpr = 1,
    WHICH: tl.constexpr = 0,
):
    """Store W before each of the steps start..stop-1 in `buffer`, beginning with the given one: of a head's
    `MATRICES` the one `WHICH`, whose errors follow each other."""
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    for t in range(start, stop):
        W = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, W)
        store_matrix(buffer + (t - start) * V * K, W, V, K, BLOCK_V, BLOCK_K)
        error_row = load_row(error + (MATRICES * row(t, b, h) + WHICH) * V, V, BLOCK_V)
        u = tl.load(beta + t * beta_t) * error_row
        W += outer(u, load_row(k + t * k_t, K, BLOCK_K))


@triton.jit(do_not_specialize=["T"])
def delta_rnn_forward_kernel(
    z,
    k,
    v,
    beta,
    R,
    y0,
    reset,
    y,
    R_T,
    error,
    p,
    checkpoints,
    z_t,
    z_b,
    z_h,
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
    KEEP: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    z += b * z_b + h * z_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    now = load_matrix(R + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    y_row = load_row(y0 + row(0, b, h) * V, V, BLOCK_V)
    for t in range(T.to(tl.int64)):  # 64-bit time makes 64-bit addresses
        fresh = tl.load(reset + t * tl.num_programs(0) + b)
        now, y_row = tl.where(fresh, 0.0, now), tl.where(fresh, 0.0, y_row)
        p_row = softmax(y_row, V, BLOCK_V)
        if KEEP:  # noqa: SIM102 - one is decided by the compiler, the other by the program
            if t % SPACING == 0:
                store_matrix(checkpoints + row(t // SPACING, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)
        k_row = load_row(k + t * k_t, K, BLOCK_K)
        v_row = load_row(v + t * v_t, V, BLOCK_V)
        read_row, now, error_row = delta_step(now, p_row, k_row, v_row, tl.load(beta + t * beta_t))
        y_row = load_row(z + t * z_t, V, BLOCK_V) + read_row
        store_row(y + row(t, b, h) * V, y_row, V, BLOCK_V)
        if KEEP:
            store_row(error + row(t, b, h) * V, error_row, V, BLOCK_V)
            store_row(p + row(t, b, h) * V, p_row, V, BLOCK_V)
    store_matrix(R_T + row(0, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)


@triton.jit(do_not_specialize=["T"])
def delta_rnn_backward_kernel(
    k,
    beta,
    reset,
    error,
    p,
    checkpoints,
    buffer,
    dy,
    dR_T,
    dz,
    dk,
    dv,
    dbeta,
    dR,
    dy0,
    k_t,
    k_b,
    k_h,
    beta_t,
    beta_b,
    beta_h,
    T,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    k += b * k_b + h * k_h
    beta += b * beta_b + h * beta_h
    buffer += row(0, b, h) * SPACING * V * K
    gradient = load_matrix(dR_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    dy_row = tl.zeros((BLOCK_V,), tl.float32)
    steps = T.to(tl.int64)
    spans = tl.cdiv(steps, SPACING)
    for span_back in range(spans):
        start = (spans - 1 - span_back) * SPACING
        stop = tl.minimum(start + SPACING, steps)
        R = load_matrix(checkpoints + row(start // SPACING, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
        tl.debug_barrier()  # the buffer's readers are done
        replay(R, k, beta, error, reset, buffer, start, stop, k_t, beta_t, V, K, BLOCK_V, BLOCK_K)
        tl.debug_barrier()  # other threads may read it than wrote it
        for back in range(stop - start):
            t = stop - 1 - back
            at = row(t, b, h)
            dy_row += load_row(dy + at * V, V, BLOCK_V)
            store_row(dz + at * V, dy_row, V, BLOCK_V)
            R = load_matrix(buffer + (t - start) * V * K, V, K, BLOCK_V, BLOCK_K)
            p_row = load_row(p + at * V, V, BLOCK_V)
            k_row = load_row(k + t * k_t, K, BLOCK_K)
            error_row = load_row(error + at * V, V, BLOCK_V)
            dp, dk_row, dv_row, dbeta_t, gradient = delta_step_backward(
                gradient, R, p_row, k_row, tl.load(beta + t * beta_t), error_row, dy_row
            )
            store_row(dk + at * K, dk_row, K, BLOCK_K)
            store_row(dv + at * V, dv_row, V, BLOCK_V)
            tl.store(dbeta + at, dbeta_t)
            fresh = tl.load(reset + t * tl.num_programs(0) + b)
            gradient = tl.where(fresh, 0.0, gradient)
            dy_row = tl.where(fresh, 0.0, softmax_backward(dp, p_row))
    store_matrix(dR + row(0, b, h) * V * K, gradient, V, K, BLOCK_V, BLOCK_K)
    store_row(dy0 + row(0, b, h) * V, dy_row, V, BLOCK_V)


@triton.jit(do_not_specialize=["T"])
def recurrent_delta_forward_kernel(
    q,
    k,
    v,
    beta,
    Rq,
    Rk,
    Rv,
    rb,
    W,
    y0,
    reset,
    y,
    W_T,
    g,
    q_used,
    k_used,
    beta_used,
    error,
    checkpoints,
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
    KEEP: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    Rq_now = load_matrix(Rq + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rk_now = load_matrix(Rk + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rv_now = load_matrix(Rv + h * V * V, V, V, BLOCK_V, BLOCK_V)
    rb_now = load_row(rb + h * V, V, BLOCK_V)
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    y_row = load_row(y0 + row(0, b, h) * V, V, BLOCK_V)
    for t in range(T.to(tl.int64)):  # 64-bit time makes 64-bit addresses
        fresh = tl.load(reset + t * tl.num_programs(0) + b)
        now, y_row = tl.where(fresh, 0.0, now), tl.where(fresh, 0.0, y_row)
        if KEEP:  # noqa: SIM102 - one is decided by the compiler, the other by the program
            if t % SPACING == 0:
                store_matrix(checkpoints + row(t // SPACING, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)
        g_row = tanh(y_row)
        q_row = softmax(load_row(q + t * q_t, K, BLOCK_K) + read_back(Rq_now, g_row), K, BLOCK_K)
        k_row = softmax(load_row(k + t * k_t, K, BLOCK_K) + read_back(Rk_now, g_row), K, BLOCK_K)
        v_row = load_row(v + t * v_t, V, BLOCK_V) + read_back(Rv_now, g_row)
        strength = tl.sigmoid(tl.load(beta + t * beta_t) + tl.sum(g_row * rb_now, 0))
        y_row, now, error_row = delta_step(now, q_row, k_row, v_row, strength)
        at = row(t, b, h)
        store_row(y + at * V, y_row, V, BLOCK_V)
        if KEEP:
            store_row(g + at * V, g_row, V, BLOCK_V)
            store_row(q_used + at * K, q_row, K, BLOCK_K)
            store_row(k_used + at * K, k_row, K, BLOCK_K)
            tl.store(beta_used + at, strength)
            store_row(error + at * V, error_row, V, BLOCK_V)
    store_matrix(W_T + row(0, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)


@triton.jit(do_not_specialize=["T"])
def recurrent_delta_backward_kernel(
    Rq,
    Rk,
    Rv,
    rb,
    reset,
    g,
    q_used,
    k_used,
    beta_used,
    error,
    checkpoints,
    buffer,
    dy,
    dW_T,
    dq,
    dk,
    dv,
    dbeta,
    dW,
    dy0,
    T,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    Rq_now = load_matrix(Rq + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rk_now = load_matrix(Rk + h * V * K, V, K, BLOCK_V, BLOCK_K)
    Rv_now = load_matrix(Rv + h * V * V, V, V, BLOCK_V, BLOCK_V)
    rb_now = load_row(rb + h * V, V, BLOCK_V)
    heads = row(1, 0, 0)  # of all rows: the distance between two steps
    buffer += row(0, b, h) * SPACING * V * K
    gradient = load_matrix(dW_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    dy_row = tl.zeros((BLOCK_V,), tl.float32)
    steps = T.to(tl.int64)
    spans = tl.cdiv(steps, SPACING)
    for span_back in range(spans):
        start = (spans - 1 - span_back) * SPACING
        stop = tl.minimum(start + SPACING, steps)
        W = load_matrix(checkpoints + row(start // SPACING, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
        tl.debug_barrier()  # the buffer's readers are done
        first = row(0, b, h)
        replay(
            W,
            k_used + first * K,
            beta_used + first,
            error,
            reset,
            buffer,
            start,
            stop,
            heads * K,
            heads,
            V,
            K,
            BLOCK_V,
            BLOCK_K,
        )
        tl.debug_barrier()  # other threads may read it than wrote it
        for back in range(stop - start):
            t = stop - 1 - back
            at = row(t, b, h)
            dy_row += load_row(dy + at * V, V, BLOCK_V)
            W = load_matrix(buffer + (t - start) * V * K, V, K, BLOCK_V, BLOCK_K)
            q_row = load_row(q_used + at * K, K, BLOCK_K)
            k_row = load_row(k_used + at * K, K, BLOCK_K)
            error_row = load_row(error + at * V, V, BLOCK_V)
            strength = tl.load(beta_used + at)
            dq_row, dk_row, dv_row, dbeta_t, gradient = delta_step_backward(
                gradient, W, q_row, k_row, strength, error_row, dy_row
            )
            dq_row = softmax_backward(dq_row, q_row)
            dk_row = softmax_backward(dk_row, k_row)
            dbeta_t *= strength * (1 - strength)
            store_row(dq + at * K, dq_row, K, BLOCK_K)
            store_row(dk + at * K, dk_row, K, BLOCK_K)
            store_row(dv + at * V, dv_row, V, BLOCK_V)
            tl.store(dbeta + at, dbeta_t)
            dg = read(Rq_now, dq_row) + read(Rk_now, dk_row) + read(Rv_now, dv_row) + rb_now * dbeta_t
            g_row = load_row(g + at * V, V, BLOCK_V)
            fresh = tl.load(reset + t * tl.num_programs(0) + b)
            gradient = tl.where(fresh, 0.0, gradient)
            dy_row = tl.where(fresh, 0.0, dg * (1 - g_row * g_row))
    store_matrix(dW + row(0, b, h) * V * K, gradient, V, K, BLOCK_V, BLOCK_K)
    store_row(dy0 + row(0, b, h) * V, dy_row, V, BLOCK_V)
