"""The Delta LSTM in Triton: one kernel forward and one backward, as the Delta RNN's in `recurrent.py`, with
the three matrices of a head in registers."""

import triton
import triton.language as tl

from .recurrent import replay
from .steps import (
    delta_step,
    delta_step_backward,
    load_matrix,
    load_row,
    row,
    softmax,
    softmax_backward,
    store_matrix,
    store_row,
)

VARIANTS = "ABCD"
READS_ITSELF, ADDS_INPUT, LINEAR = (tl.constexpr(VARIANTS.index(variant)) for variant in "ACD")


@triton.jit
def gate_step(
    now,
    p_row,
    z,
    k,
    v,
    beta,
    error,
    checkpoints,
    t,
    at,
    place,
    z_t,
    k_t,
    v_t,
    beta_t,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
    SPACING: tl.constexpr,
):
    """Return the gate's input, what it reads besides, and its matrix after the write; `at` and `place` number
    it among all of the step and of the span."""
    if KEEP:  # noqa: SIM102 - one is decided by the compiler, the other by the program
        if t % SPACING == 0:
            store_matrix(checkpoints + place * V * V, now, V, V, BLOCK, BLOCK)
    k_row = load_row(k + t * k_t, V, BLOCK)
    v_row = load_row(v + t * v_t, V, BLOCK)
    read_row, now, error_row = delta_step(now, p_row, k_row, v_row, tl.load(beta + t * beta_t))
    if KEEP:
        store_row(error + at * V, error_row, V, BLOCK)
    return load_row(z + t * z_t, V, BLOCK), read_row, now


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    z,
    k,
    v,
    beta,
    R,
    y0,
    c0,
    reset,
    y,
    R_T,
    c_T,
    error,
    p,
    cells,
    gates,
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
    BLOCK: tl.constexpr,
    VARIANT: tl.constexpr,
    KEEP: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    z += b * z_b + 3 * h * z_h
    k += b * k_b + 3 * h * k_h
    v += b * v_b + 3 * h * v_h
    beta += b * beta_b + 3 * h * beta_h
    first = row(0, b, h)
    size: tl.constexpr = V * V
    now_i = load_matrix(R + 3 * first * size, V, V, BLOCK, BLOCK)
    now_u = load_matrix(R + (3 * first + 1) * size, V, V, BLOCK, BLOCK)
    now_o = load_matrix(R + (3 * first + 2) * size, V, V, BLOCK, BLOCK)
    y_row, c = load_row(y0 + first * V, V, BLOCK), load_row(c0 + first * V, V, BLOCK)
    for t in range(T.to(tl.int64)):  # 64-bit time makes 64-bit addresses
        fresh = tl.load(reset + t * tl.num_programs(0) + b)
        now_i, now_u = tl.where(fresh, 0.0, now_i), tl.where(fresh, 0.0, now_u)
        now_o, c = tl.where(fresh, 0.0, now_o), tl.where(fresh, 0.0, c)
        y_row = tl.where(fresh, 0.0, y_row)
        p_row = y_row if VARIANT == READS_ITSELF else softmax(y_row, V, BLOCK)
        at = row(t, b, h)
        span = 3 * row(t // SPACING, b, h)
        if KEEP:
            store_row(p + at * V, p_row, V, BLOCK)
            store_row(cells + at * V, c, V, BLOCK)
        z_i, read_i, now_i = gate_step(
            now_i, p_row, z, k, v, beta, error, checkpoints, t, 3 * at, span,
            z_t, k_t, v_t, beta_t, V, BLOCK, KEEP, SPACING,
        )  # fmt: skip
        z_u, read_u, now_u = gate_step(
            now_u, p_row, z + z_h, k + k_h, v + v_h, beta + beta_h, error, checkpoints, t,
            3 * at + 1, span + 1,
            z_t, k_t, v_t, beta_t, V, BLOCK, KEEP, SPACING,
        )  # fmt: skip
        z_o, read_o, now_o = gate_step(
            now_o, p_row, z + 2 * z_h, k + 2 * k_h, v + 2 * v_h, beta + 2 * beta_h, error, checkpoints, t,
            3 * at + 2, span + 2,
            z_t, k_t, v_t, beta_t, V, BLOCK, KEEP, SPACING,
        )  # fmt: skip
        i, o = tl.sigmoid(z_i + read_i), tl.sigmoid(z_o + read_o)
        u = z_u + read_u if VARIANT == LINEAR else tl.sigmoid(z_u + read_u)
        c += i * (u - c)
        y_row = c * o
        if VARIANT == READS_ITSELF:
            y_row = softmax(y_row, V, BLOCK)
        if VARIANT == ADDS_INPUT:
            y_row += z_u
        store_row(y + at * V, y_row, V, BLOCK)
        if KEEP:
            store_row(gates + 3 * at * V, i, V, BLOCK)
            store_row(gates + (3 * at + 1) * V, u, V, BLOCK)
            store_row(gates + (3 * at + 2) * V, o, V, BLOCK)
    store_matrix(R_T + 3 * first * size, now_i, V, V, BLOCK, BLOCK)
    store_matrix(R_T + (3 * first + 1) * size, now_u, V, V, BLOCK, BLOCK)
    store_matrix(R_T + (3 * first + 2) * size, now_o, V, V, BLOCK, BLOCK)
    store_row(c_T + first * V, c, V, BLOCK)


@triton.jit
def gate_step_backward(
    gradient,
    before,
    p_row,
    dact,
    dz_row,
    k,
    beta,
    error,
    dz,
    dk,
    dv,
    dbeta,
    t,
    at,
    k_t,
    beta_t,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the gradient of what the matrix was read with and that of the matrix before the step."""
    k_row, error_row = load_row(k + t * k_t, V, BLOCK), load_row(error + at * V, V, BLOCK)
    W = load_matrix(before, V, V, BLOCK, BLOCK)
    dp, dk_row, dv_row, dbeta_t, gradient = delta_step_backward(
        gradient, W, p_row, k_row, tl.load(beta + t * beta_t), error_row, dact
    )
    store_row(dz + at * V, dz_row, V, BLOCK)
    store_row(dk + at * V, dk_row, V, BLOCK)
    store_row(dv + at * V, dv_row, V, BLOCK)
    tl.store(dbeta + at, dbeta_t)
    return dp, gradient


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    k,
    beta,
    reset,
    y,
    error,
    p,
    cells,
    gates,
    checkpoints,
    buffer,
    dy,
    dR_T,
    dc_T,
    dz,
    dk,
    dv,
    dbeta,
    dR,
    dy0,
    dc0,
    k_t,
    k_b,
    k_h,
    beta_t,
    beta_b,
    beta_h,
    T,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    VARIANT: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    k += b * k_b + 3 * h * k_h
    beta += b * beta_b + 3 * h * beta_h
    first = row(0, b, h)
    size: tl.constexpr = V * V
    buffer_i = buffer + 3 * first * SPACING * size
    buffer_u, buffer_o = buffer_i + SPACING * size, buffer_i + 2 * SPACING * size
    G_i = load_matrix(dR_T + 3 * first * size, V, V, BLOCK, BLOCK)
    G_u = load_matrix(dR_T + (3 * first + 1) * size, V, V, BLOCK, BLOCK)
    G_o = load_matrix(dR_T + (3 * first + 2) * size, V, V, BLOCK, BLOCK)
    later, dc = tl.zeros((BLOCK,), tl.float32), load_row(dc_T + first * V, V, BLOCK)
    steps = T.to(tl.int64)
    spans = tl.cdiv(steps, SPACING)
    for span_back in range(spans):
        start = (spans - 1 - span_back) * SPACING
        stop = tl.minimum(start + SPACING, steps)
        place = 3 * row(start // SPACING, b, h)
        tl.debug_barrier()  # the buffer's readers are done
        R = load_matrix(checkpoints + place * size, V, V, BLOCK, BLOCK)
        replay(
            R, k, beta, error, reset, buffer_i, start, stop,
            k_t, beta_t, V, V, BLOCK, BLOCK, 3, 0,
        )  # fmt: skip
        R = load_matrix(checkpoints + (place + 1) * size, V, V, BLOCK, BLOCK)
        replay(
            R, k + k_h, beta + beta_h, error, reset, buffer_u, start, stop,
            k_t, beta_t, V, V, BLOCK, BLOCK, 3, 1,
        )  # fmt: skip
        R = load_matrix(checkpoints + (place + 2) * size, V, V, BLOCK, BLOCK)
        replay(
            R, k + 2 * k_h, beta + 2 * beta_h, error, reset, buffer_o, start, stop,
            k_t, beta_t, V, V, BLOCK, BLOCK, 3, 2,
        )  # fmt: skip
        tl.debug_barrier()  # other threads may read it than wrote it
        for back in range(stop - start):
            t = stop - 1 - back
            at = row(t, b, h)
            within = (t - start) * size
            dy_row = load_row(dy + at * V, V, BLOCK) + later
            dh = dy_row
            if VARIANT == READS_ITSELF:
                dh = softmax_backward(dy_row, load_row(y + at * V, V, BLOCK))
            p_row, c = load_row(p + at * V, V, BLOCK), load_row(cells + at * V, V, BLOCK)
            i = load_row(gates + 3 * at * V, V, BLOCK)
            u = load_row(gates + (3 * at + 1) * V, V, BLOCK)
            o = load_row(gates + (3 * at + 2) * V, V, BLOCK)
            dc += dh * o
            d_i = dc * (u - c) * i * (1 - i)
            d_u = dc * i if VARIANT == LINEAR else dc * i * u * (1 - u)
            d_o = dh * (c + i * (u - c)) * o * (1 - o)
            dc *= 1 - i
            dz_u = d_u + dy_row if VARIANT == ADDS_INPUT else d_u
            dp_i, G_i = gate_step_backward(
                G_i, buffer_i + within, p_row, d_i, d_i, k, beta, error, dz, dk, dv, dbeta, t, 3 * at,
                k_t, beta_t, V, BLOCK,
            )  # fmt: skip
            dp_u, G_u = gate_step_backward(
                G_u, buffer_u + within, p_row, d_u, dz_u, k + k_h, beta + beta_h, error, dz, dk, dv, dbeta, t,
                3 * at + 1, k_t, beta_t, V, BLOCK,
            )  # fmt: skip
            dp_o, G_o = gate_step_backward(
                G_o, buffer_o + within, p_row, d_o, d_o, k + 2 * k_h, beta + 2 * beta_h, error, dz, dk, dv,
                dbeta, t, 3 * at + 2, k_t, beta_t, V, BLOCK,
            )  # fmt: skip
            later = dp_i + dp_u + dp_o
            if VARIANT != READS_ITSELF:
                later = softmax_backward(later, p_row)
            fresh = tl.load(reset + t * tl.num_programs(0) + b)
            G_i, G_u = tl.where(fresh, 0.0, G_i), tl.where(fresh, 0.0, G_u)
            G_o, dc = tl.where(fresh, 0.0, G_o), tl.where(fresh, 0.0, dc)
            later = tl.where(fresh, 0.0, later)
    store_matrix(dR + 3 * first * size, G_i, V, V, BLOCK, BLOCK)
    store_matrix(dR + (3 * first + 1) * size, G_u, V, V, BLOCK, BLOCK)
    store_matrix(dR + (3 * first + 2) * size, G_o, V, V, BLOCK, BLOCK)
    store_row(dy0 + first * V, later, V, BLOCK)
    store_row(dc0 + first * V, dc, V, BLOCK)
