"""Shared device functions: loads and stores of rows and matrices, and one delta-rule step each way.

One program owns one head of one batch row and walks through time. Sizes are padded to powers of two with
zeros, which add nothing to any sum; only a softmax has to know where its row ends.
"""

import triton
import triton.language as tl


@triton.jit
def row(t, b, h):
    """Return the offset of `[t, b, h]` in a contiguous `[T, B, H]`. All three are 64-bit."""
    return (t * tl.num_programs(0) + b) * tl.num_programs(1) + h


@triton.jit
def load_row(x, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    return tl.load(x + i, mask=i < SIZE, other=0.0)


@triton.jit
def store_row(x, values, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, values, mask=i < SIZE)


@triton.jit
def load_matrix(x, V: tl.constexpr, K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):
    i, j = tl.arange(0, BLOCK_V)[:, None], tl.arange(0, BLOCK_K)[None, :]
    return tl.load(x + i * K + j, mask=(i < V) & (j < K), other=0.0)


@triton.jit
def store_matrix(x, values, V: tl.constexpr, K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr):
    i, j = tl.arange(0, BLOCK_V)[:, None], tl.arange(0, BLOCK_K)[None, :]
    tl.store(x + i * K + j, values, mask=(i < V) & (j < K))


@triton.jit
def read(W, k):
    """Compute `W k`: `[V, K]`, `[K]` -> `[V]`."""
    return tl.sum(W * k[None, :], 1)


@triton.jit
def read_back(W, v):
    """Compute `Wᵀ v`: `[V, K]`, `[V]` -> `[K]`."""
    return tl.sum(W * v[:, None], 0)


@triton.jit
def outer(u, k):
    """Compute `u kᵀ`: `[V]`, `[K]` -> `[V, K]`."""
    return u[:, None] * k[None, :]


@triton.jit
def delta_step(W, q, k, v, beta):
    """Return y, W after the write and the error `v - W k`. Both reads precede the write, so they overlap."""
    read_q = read(W, q)
    error = v - read(W, k)
    u = beta * error
    return read_q + tl.sum(q * k, 0) * u, W + outer(u, k), error


@triton.jit
def delta_step_backward(dW, W, q, k, beta, error, dy):
    """Return gradients of q, k, v, beta and W, which is the one before the step, from that of W after it."""
    u = beta * error
    dW += outer(dy, q)
    du = read(dW, k)
    dv = beta * du
    dq = read_back(W, dy) + tl.sum(u * dy, 0) * k
    dk = tl.sum(dW * u[:, None] - W * dv[:, None], 0)
    return dq, dk, dv, tl.sum(du * error, 0), dW - outer(dv, k)


@triton.jit
def softmax(x, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.where(tl.arange(0, BLOCK) < SIZE, x, float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    return e / tl.sum(e, 0)


@triton.jit
def softmax_backward(dp, p):
    return p * (dp - tl.sum(dp * p, 0))


@triton.jit
def tanh(x):
    e = tl.exp(-2 * tl.abs(x))  # at most 1: no overflow
    y = (1 - e) / (1 + e)
    s = x * x  # of small x, 1 - e keeps few digits: Taylor's series
    near = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    return tl.where(s < 0.0625, near, tl.where(x < 0, -y, y))
