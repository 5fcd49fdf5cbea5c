"""Fast weights that decay, and the delta rule with momentum, in Triton: a kernel each way for each.

The gradient of a decay needs the fast weights of every step, from last to first: as in `recurrent.py`,
forward keeps every `SPACING`-th, and backward replays the writes in between into a buffer and walks back
over it.
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
    store_matrix,
    store_row,
)


@triton.jit
def load_rates(decay, V: tl.constexpr, BLOCK_V: tl.constexpr, ERASES: tl.constexpr):
    """Load the decay of each row of W as a column; where writes erase, it is one number for all."""
    if ERASES:
        rates = tl.zeros((BLOCK_V,), tl.float32) + tl.load(decay)
    else:
        rates = load_row(decay, V, BLOCK_V)
    return rates[:, None]


@triton.jit(do_not_specialize=["T"])
def gated_forward_kernel(
    q,
    k,
    v,
    beta,
    decay,
    W,
    reset,
    y,
    W_T,
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
    decay_t,
    decay_b,
    decay_h,
    T,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ERASES: tl.constexpr,
    KEEP: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    decay += b * decay_b + h * decay_h
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    for t in range(T.to(tl.int64)):  # 64-bit time makes 64-bit addresses
        now = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, now)
        if KEEP:  # noqa: SIM102 - one is decided by the compiler, the other by the program
            if t % SPACING == 0:
                store_matrix(checkpoints + row(t // SPACING, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)
        now *= load_rates(decay + t * decay_t, V, BLOCK_V, ERASES)
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
def gated_backward_kernel(
    q,
    k,
    v,
    beta,
    decay,
    reset,
    error,
    checkpoints,
    buffer,
    dy,
    dW_T,
    dq,
    dk,
    dv,
    dbeta,
    ddecay,
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
    decay_t,
    decay_b,
    decay_h,
    T,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ERASES: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    decay += b * decay_b + h * decay_h
    buffer += row(0, b, h) * SPACING * V * K
    gradient = load_matrix(dW_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    steps = T.to(tl.int64)
    spans = tl.cdiv(steps, SPACING)
    for span_back in range(spans):
        start = (spans - 1 - span_back) * SPACING
        stop = tl.minimum(start + SPACING, steps)
        now = load_matrix(checkpoints + row(start // SPACING, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
        tl.debug_barrier()  # the buffer's readers are done
        for t in range(start, stop):
            now = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, now)
            store_matrix(buffer + (t - start) * V * K, now, V, K, BLOCK_V, BLOCK_K)
            if ERASES:
                u = tl.load(beta + t * beta_t) * load_row(error + row(t, b, h) * V, V, BLOCK_V)
            else:
                u = load_row(v + t * v_t, V, BLOCK_V)
            now = load_rates(decay + t * decay_t, V, BLOCK_V, ERASES) * now
            now += outer(u, load_row(k + t * k_t, K, BLOCK_K))
        tl.debug_barrier()  # other threads may read it than wrote it
        for back in range(stop - start):
            t = stop - 1 - back
            at = row(t, b, h)
            before = load_matrix(buffer + (t - start) * V * K, V, K, BLOCK_V, BLOCK_K)
            rates = load_rates(decay + t * decay_t, V, BLOCK_V, ERASES)
            q_row = load_row(q + t * q_t, K, BLOCK_K)
            k_row = load_row(k + t * k_t, K, BLOCK_K)
            dy_row = load_row(dy + at * V, V, BLOCK_V)
            if ERASES:
                error_row = load_row(error + at * V, V, BLOCK_V)
                dq_row, dk_row, dv_row, dbeta_t, gradient = delta_step_backward(
                    gradient, rates * before, q_row, k_row, tl.load(beta + t * beta_t), error_row, dy_row
                )
                tl.store(dbeta + at, dbeta_t)
                tl.store(ddecay + at, tl.sum(tl.sum(gradient * before, 1), 0))
            else:
                v_row = load_row(v + t * v_t, V, BLOCK_V)
                gradient += outer(dy_row, q_row)
                dq_row = read_back(rates * before, dy_row) + tl.sum(v_row * dy_row, 0) * k_row
                dk_row, dv_row = read_back(gradient, v_row), read(gradient, k_row)
                store_row(ddecay + at * V, tl.sum(gradient * before, 1), V, BLOCK_V)
            store_row(dq + at * K, dq_row, K, BLOCK_K)
            store_row(dk + at * K, dk_row, K, BLOCK_K)
            store_row(dv + at * V, dv_row, V, BLOCK_V)
            gradient = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, gradient * rates)
    store_matrix(dW + row(0, b, h) * V * K, gradient, V, K, BLOCK_V, BLOCK_K)


@triton.jit
def momentum_step(W, C, k, v, beta, decay, momentum, found):
    """Return W and C after the step, given what was found under k in the decayed W."""
    C = momentum * C + outer(beta * v, k)
    return decay * W - outer(beta * found, k) + C, C


@triton.jit(do_not_specialize=["T"])
def momentum_forward_kernel(
    q,
    k,
    v,
    beta,
    decay,
    momentum,
    W,
    C,
    reset,
    y,
    W_T,
    C_T,
    found,
    checkpoints,
    checkpoints_C,
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
    decay_t,
    decay_b,
    decay_h,
    momentum_t,
    momentum_b,
    momentum_h,
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
    decay += b * decay_b + h * decay_h
    momentum += b * momentum_b + h * momentum_h
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    added = load_matrix(C + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    for t in range(T.to(tl.int64)):  # 64-bit time makes 64-bit addresses
        fresh = tl.load(reset + t * tl.num_programs(0) + b)
        now, added = tl.where(fresh, 0.0, now), tl.where(fresh, 0.0, added)
        if KEEP:  # noqa: SIM102 - one is decided by the compiler, the other by the program
            if t % SPACING == 0:
                span = row(t // SPACING, b, h) * V * K
                store_matrix(checkpoints + span, now, V, K, BLOCK_V, BLOCK_K)
                store_matrix(checkpoints_C + span, added, V, K, BLOCK_V, BLOCK_K)
        k_row = load_row(k + t * k_t, K, BLOCK_K)
        v_row = load_row(v + t * v_t, V, BLOCK_V)
        rate = tl.load(decay + t * decay_t)
        found_row = rate * read(now, k_row)
        strength, share = tl.load(beta + t * beta_t), tl.load(momentum + t * momentum_t)
        now, added = momentum_step(now, added, k_row, v_row, strength, rate, share, found_row)
        if KEEP:
            store_row(found + row(t, b, h) * V, found_row, V, BLOCK_V)
        store_row(y + row(t, b, h) * V, read(now, load_row(q + t * q_t, K, BLOCK_K)), V, BLOCK_V)
    store_matrix(W_T + row(0, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)
    store_matrix(C_T + row(0, b, h) * V * K, added, V, K, BLOCK_V, BLOCK_K)


@triton.jit(do_not_specialize=["T"])
def momentum_backward_kernel(
    q,
    k,
    v,
    beta,
    decay,
    momentum,
    reset,
    found,
    checkpoints,
    checkpoints_C,
    buffer,
    dy,
    dW_T,
    dC_T,
    dq,
    dk,
    dv,
    dbeta,
    ddecay,
    dmomentum,
    dW,
    dC,
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
    decay_t,
    decay_b,
    decay_h,
    momentum_t,
    momentum_b,
    momentum_h,
    T,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    decay += b * decay_b + h * decay_h
    momentum += b * momentum_b + h * momentum_h
    buffer += row(0, b, h) * 2 * SPACING * V * K
    P = load_matrix(dW_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    Q = load_matrix(dC_T + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    steps = T.to(tl.int64)
    spans = tl.cdiv(steps, SPACING)
    for span_back in range(spans):
        start = (spans - 1 - span_back) * SPACING
        stop = tl.minimum(start + SPACING, steps)
        span = row(start // SPACING, b, h) * V * K
        now = load_matrix(checkpoints + span, V, K, BLOCK_V, BLOCK_K)
        added = load_matrix(checkpoints_C + span, V, K, BLOCK_V, BLOCK_K)
        tl.debug_barrier()  # the buffer's readers are done
        for t in range(start, stop):
            fresh = tl.load(reset + t * tl.num_programs(0) + b)
            now, added = tl.where(fresh, 0.0, now), tl.where(fresh, 0.0, added)
            place = buffer + 2 * (t - start) * V * K
            store_matrix(place, now, V, K, BLOCK_V, BLOCK_K)
            store_matrix(place + V * K, added, V, K, BLOCK_V, BLOCK_K)
            found_row = load_row(found + row(t, b, h) * V, V, BLOCK_V)
            k_row, v_row = load_row(k + t * k_t, K, BLOCK_K), load_row(v + t * v_t, V, BLOCK_V)
            strength, rate = tl.load(beta + t * beta_t), tl.load(decay + t * decay_t)
            share = tl.load(momentum + t * momentum_t)
            now, added = momentum_step(now, added, k_row, v_row, strength, rate, share, found_row)
        tl.debug_barrier()  # other threads may read it than wrote it
        for back in range(stop - start):
            t = stop - 1 - back
            at = row(t, b, h)
            place = buffer + 2 * (t - start) * V * K
            before = load_matrix(place, V, K, BLOCK_V, BLOCK_K)
            before_C = load_matrix(place + V * K, V, K, BLOCK_V, BLOCK_K)
            k_row, v_row = load_row(k + t * k_t, K, BLOCK_K), load_row(v + t * v_t, V, BLOCK_V)
            found_row, dy_row = load_row(found + at * V, V, BLOCK_V), load_row(dy + at * V, V, BLOCK_V)
            strength, rate = tl.load(beta + t * beta_t), tl.load(decay + t * decay_t)
            share = tl.load(momentum + t * momentum_t)
            after, _ = momentum_step(before, before_C, k_row, v_row, strength, rate, share, found_row)
            store_row(dq + at * K, read_back(after, dy_row), K, BLOCK_K)
            P += outer(dy_row, load_row(q + t * q_t, K, BLOCK_K))
            Q += P
            erases, writes = read(P, k_row), read(Q, k_row)  # gradients of -β found and β v
            dfound = -strength * erases
            dk_row = read_back(Q, strength * v_row) - read_back(P, strength * found_row)
            store_row(dk + at * K, dk_row + rate * read_back(before, dfound), K, BLOCK_K)
            store_row(dv + at * V, strength * writes, V, BLOCK_V)
            P += outer(dfound, k_row)
            tl.store(dbeta + at, tl.sum(writes * v_row, 0) - tl.sum(erases * found_row, 0))
            tl.store(ddecay + at, tl.sum(tl.sum(P * before, 1), 0))
            tl.store(dmomentum + at, tl.sum(tl.sum(Q * before_C, 1), 0))
            fresh = tl.load(reset + t * tl.num_programs(0) + b)
            P, Q = tl.where(fresh, 0.0, rate * P), tl.where(fresh, 0.0, share * Q)
    store_matrix(dW + row(0, b, h) * V * K, P, V, K, BLOCK_V, BLOCK_K)
    store_matrix(dC + row(0, b, h) * V * K, Q, V, K, BLOCK_V, BLOCK_K)
