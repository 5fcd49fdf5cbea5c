"""The layers around a memory in an actor's step, each in one call of `dense.c`.

For few rows, calling torch's operators takes longer than computing them. These functions of tensors
`[..., size]` have no gradients and equal torch's to rounding; `is_supported` says where they can be used.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from . import compiling

MAX_WIDTH = 4096
"""Maximum size of a row: a few such vectors for each of 16 rows lie on the stack."""


def is_supported(x: Tensor, weights: Sequence[Tensor | None] = ()) -> bool:
    """Return whether C supports x and weights here: float32 on a CPU, no gradients, no autocast."""
    if torch.is_grad_enabled() or compiling.is_watched() or torch.is_autocast_enabled("cpu"):
        return False
    for w in weights:
        if w is None:
            continue
        if not (w.dtype is torch.float32 and w.is_cpu and w.is_contiguous() and w.size(0) <= MAX_WIDTH):
            return False
    right = type(x) is Tensor and x.is_cpu and x.dtype is torch.float32 and x.shape[-1] <= MAX_WIDTH
    return right and compiling.unsupported_reason("dense.c", "LANES=8") is None


def is_supported_state(reset: Tensor, *states: Tensor) -> bool:
    """Return whether C supports reset `[B]`, bool, and states `[B, N]`, float32 of one shape, on a CPU."""
    rows, right = states[0].shape[:1], reset.dtype is torch.bool and reset.is_cpu
    same = all(x.shape == states[0].shape and x.dtype is torch.float32 and x.is_cpu for x in states)
    return right and same and reset.shape == rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Compute `x weightᵀ + bias`, rectified if `relu`: x `[..., K]`, weight `[N, K]` -> `[..., N]`."""
    N, K = weight.shape
    x, y = _rows("linear", x, K), x.new_empty((*x.shape[:-1], N))
    rows = x.numel() // K
    call("linear", rows, N * K, (rows, K, N, int(relu)), x, weight, bias, y)
    return y


def normalized_linear(
    x: Tensor, eps: float, norm: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Compute `LN(x) weightᵀ + bias`, LN with weight norm: x `[..., K]`, weight `[N, K]` -> `[..., N]`."""
    N, K = weight.shape
    x, y = _rows("normalized_linear", x, K), x.new_empty((*x.shape[:-1], N))
    rows = x.numel() // K
    call("normalized_linear", rows, N * K, (rows, K, N, eps), x, norm, norm_bias, weight, bias, y)
    return y


def residual_feedforward(x: Tensor, y: Tensor, eps: float, *weights: Tensor | None) -> Tensor:
    """Compute `z = x + y w0ᵀ + b0`, then `z + relu(LN(z) w1ᵀ + b1) w2ᵀ + b2`: x, y and the result `[..., d]`.

    `weights`: w0 `[d, d]`, b0, weight and bias of LN, w1 `[ff, d]`, b1, w2 `[d, ff]`, b2; of products' biases
    each may be None.
    """
    w1 = weights[4]
    assert w1 is not None
    ff, d = w1.shape
    x, y, result = _rows("residual_feedforward", x, d), y.contiguous(), x.new_empty(x.shape)
    rows = x.numel() // d
    call("residual_feedforward", rows, d * (d + 2 * ff), (rows, d, ff, eps), x, y, *weights, result)
    return result


def core_input(
    x: Tensor,
    weights: Sequence[Tensor | None],
    norm: Sequence[Tensor | None],
    eps: float,
    reward: Tensor,
    limit: float,
    projected: Tensor | None = None,
) -> Tensor:
    """Compute a core's input `[rows, N + 1]`: `relu(LN(x wᵀ + b))` and the reward, clamped to ±limit.

    `weights`: w `[N, K]` and b, which may be None. `norm`: weight and bias of LN; None and None for none.
    `projected` `[rows, N]` receives `x wᵀ + b`.
    """
    w = weights[0]
    assert w is not None
    N, K = w.shape
    x, reward = _rows("core_input", x, K), reward.contiguous()
    y = x.new_empty(len(x), N + 1)
    call("core_input", len(x), N * K, (len(x), K, N, eps, limit), x, *weights, *norm, reward, projected, y)
    return y


def heads(
    x: Tensor, policy: Sequence[Tensor | None], value: Sequence[Tensor | None], exp_noise: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return actions (int64), logits `[rows, A]` and values `[rows]` of x `[rows, K]`.

    policy, value: weight `[A, K]` or `[1, K]`, and bias of each head. exp_noise: numbers drawn from Exp(1),
    `[rows, A]`, for actions drawn from the policy; None for the likeliest.
    """
    w = policy[0]
    assert w is not None
    A, K = w.shape
    x = _rows("heads", x, K)
    rows = len(x)
    logits, values, actions = x.new_empty(rows, A), x.new_empty(rows), x.new_empty(rows, dtype=torch.int64)
    call("heads", rows, A * K, (rows, K, A), x, *policy, *value, exp_noise, logits, values, actions)
    return actions, logits, values


def normalized_elu(x: Tensor, epsilon: float) -> Tensor:
    """Compute `(elu(x) + 1) / (its sum over the last dimension + epsilon)`."""
    y, flat = x.new_empty(x.shape), x.flatten(0, -2)
    rows, size = flat.shape
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    call("normalized_elu", rows, size, (rows, size, flat.stride(0), epsilon), flat, y)
    return y


def _rows(name: str, x: Tensor, size: int) -> Tensor:
    if x.shape[-1] != size:
        raise ValueError(f"{name}: x is {list(x.shape)}; give rows of {size}")
    return x.contiguous()


def lanes(rows: int) -> int:
    """Return how many rows C computes at a time: as many as fit in a register, or 8 if the last 16 would be
    half empty. A compiler would split vectors wider than registers into scalars."""
    return 8 if (rows - 1) % 16 < 8 else _register_rows()


@functools.cache
def _register_rows() -> int:
    return int(ctypes.c_int64.in_dll(compiling.library("dense.c", "LANES=8"), "register_rows").value)


def call(name: str, rows: int, work: int, numbers: tuple[int | float, ...], *tensors: Tensor | None) -> None:
    """Call a function of `dense.c` for so many rows of a batch, with `work` multiplications each."""
    width = lanes(rows)
    count = threads(rows, width, rows * work)
    compiling.call("dense.c", f"LANES={width}", name, (count, *numbers), *tensors)


def threads(rows: int, width: int, work: int) -> int:
    """Return how many threads to use for rows, `width` at a time, with `work` multiplications in all."""
    return min(torch.get_num_threads(), -(-rows // width)) if work > 1 << 20 else 1
