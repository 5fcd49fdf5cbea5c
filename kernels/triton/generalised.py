"""The generalised delta rule in Triton: a kernel each way.

Forward stores the fast weights before every `SPACING`-th step; backward replays the writes in between into a
buffer and walks back over it, as in `recurrent.py`.
"""

import triton
import triton.language as tl

from .steps import load_matrix, load_row, outer, read, read_back, row, store_matrix, store_row


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    q,
    k,
    u,
    e,
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
    u_t,
    u_b,
    u_h,
    e_t,
    e_b,
    e_h,
    decay_t,
    decay_b,
    decay_h,
    T,
    WRITES: tl.constexpr,
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
    u += b * u_b + h * u_h
    e += b * e_b + h * e_h
    decay += b * decay_b + h * decay_h
    now = load_matrix(W + row(0, b, h) * V * K, V, K, BLOCK_V, BLOCK_K)
    for t in range(T.to(tl.int64)):  # 64-bit time makes 64-bit addresses
        now = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, now)
        if KEEP:  # noqa: SIM102 - one is decided by the compiler, the other by the program
            if t % SPACING == 0:
                store_matrix(checkpoints + row(t // SPACING, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)
        for i in tl.static_range(WRITES):
            now *= load_row(decay + t * decay_t + i * K, K, BLOCK_K)[None, :]
            erased = read(now, load_row(e + t * e_t + i * K, K, BLOCK_K))
            difference = load_row(u + t * u_t + i * V, V, BLOCK_V) - erased
            now += outer(difference, load_row(k + t * k_t + i * K, K, BLOCK_K))
            if KEEP:
                store_row(error + (row(t, b, h) * WRITES + i) * V, difference, V, BLOCK_V)
        store_row(y + row(t, b, h) * V, read(now, load_row(q + t * q_t, K, BLOCK_K)), V, BLOCK_V)
    store_matrix(W_T + row(0, b, h) * V * K, now, V, K, BLOCK_V, BLOCK_K)


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    q,
    k,
    e,
    decay,
    reset,
    error,
    checkpoints,
    buffer,
    dy,
    dW_T,
    dq,
    dk,
    du,
    de,
    ddecay,
    dW,
    q_t,
    q_b,
    q_h,
    k_t,
    k_b,
    k_h,
    e_t,
    e_b,
    e_h,
    decay_t,
    decay_b,
    decay_h,
    T,
    WRITES: tl.constexpr,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPACING: tl.constexpr,
):
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    e += b * e_b + h * e_h
    decay += b * decay_b + h * decay_h
    buffer += row(0, b, h) * SPACING * WRITES * V * K
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
            for i in tl.static_range(WRITES):
                place = buffer + ((t - start) * WRITES + i) * V * K
                store_matrix(place, now, V, K, BLOCK_V, BLOCK_K)
                difference = load_row(error + (row(t, b, h) * WRITES + i) * V, V, BLOCK_V)
                now *= load_row(decay + t * decay_t + i * K, K, BLOCK_K)[None, :]
                now += outer(difference, load_row(k + t * k_t + i * K, K, BLOCK_K))
        tl.debug_barrier()  # other threads may read it than wrote it
        for back in range(stop - start):
            t = stop - 1 - back
            at = row(t, b, h)
            dy_row = load_row(dy + at * V, V, BLOCK_V)
            gradient += outer(dy_row, load_row(q + t * q_t, K, BLOCK_K))
            for i_back in tl.static_range(WRITES):
                i = WRITES - 1 - i_back
                write = at * WRITES + i
                before = load_matrix(buffer + ((t - start) * WRITES + i) * V * K, V, K, BLOCK_V, BLOCK_K)
                k_row = load_row(k + t * k_t + i * K, K, BLOCK_K)
                e_row = load_row(e + t * e_t + i * K, K, BLOCK_K)
                rates = load_row(decay + t * decay_t + i * K, K, BLOCK_K)
                difference = load_row(error + write * V, V, BLOCK_V)
                if i_back == 0:  # the write after which y was read
                    match = tl.sum(difference * dy_row, 0)
                    store_row(dq + at * K, rates * read_back(before, dy_row) + match * k_row, K, BLOCK_K)
                du_row = read(gradient, k_row)
                store_row(dk + write * K, read_back(gradient, difference), K, BLOCK_K)
                store_row(du + write * V, du_row, V, BLOCK_V)
                store_row(de + write * K, -rates * read_back(before, du_row), K, BLOCK_K)
                gradient -= outer(du_row, e_row)
                store_row(ddecay + write * K, tl.sum(gradient * before, 0), K, BLOCK_K)
                gradient *= rates[None, :]
            gradient = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, gradient)
    store_matrix(dW + row(0, b, h) * V * K, gradient, V, K, BLOCK_V, BLOCK_K)
