"""The update rules as the papers write them: one plain loop over time, in any floating dtype.

Everything else in this package is tested against these functions, forward and backward.
Shapes: q, k `[T, B, H, K]`, v `[T, B, H, V]`, beta `[T, B, H]`, reset `[T, B]` bool, W `[B, H, V, K]`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def begin(state: Tensor, reset: Tensor) -> Tensor:
    """Set the rows of `state` `[B, ...]` that begin an episode to zero.

    Selects instead of multiplying: 0 * nan is nan, and a broken memory must end with its episode.
    """
    rows = reset.view(-1, *(1,) * (state.dim() - 1))
    return torch.where(rows, torch.zeros((), dtype=state.dtype, device=state.device), state)


def read(W: Tensor, q: Tensor) -> Tensor:
    """Compute `W q` for W `[B, H, V, K]` and q `[B, H, K]`."""
    return (W * q.unsqueeze(-2)).sum(-1)


def write(W: Tensor, u: Tensor, k: Tensor) -> Tensor:
    """Compute `W + u kᵀ` for u `[B, H, V]` and k `[B, H, K]`."""
    return W + u.unsqueeze(-1) * k.unsqueeze(-2)


def delta_write(W: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Compute `W + β (v - W k) kᵀ`: move what W holds under k towards v."""
    return write(W, beta.unsqueeze(-1) * (v - read(W, k)), k)


def sum_rule(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Schlag et al. 2021, section 3.1: `W_t = W_{t-1} + v_t k_tᵀ`, `y_t = W_t q_t`."""
    outputs = []
    for t in range(q.shape[0]):
        W = write(begin(W, reset[t]), v[t], k[t])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Schlag et al. 2021, section 4.2: `W_t = W_{t-1} + β_t (v_t - W_{t-1} k_t) k_tᵀ`, `y_t = W_t q_t`."""
    outputs = []
    for t in range(q.shape[0]):
        W = delta_write(begin(W, reset[t]), k[t], v[t], beta[t])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


def delta_rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Irie et al. 2021, equation 12: R learns by the delta rule, then `y_t = z_t + R_t softmax(y_{t-1})`."""
    outputs = []
    for t in range(z.shape[0]):
        R = delta_write(begin(R, reset[t]), k[t], v[t], beta[t])
        y = z[t] + read(R, begin(y, reset[t]).softmax(-1))
        outputs.append(y)
    return torch.stack(outputs), R, y


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
    y: Tensor,
    reset: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Irie et al. 2021, equations 15-18: the delta rule whose q, k, v and β also see tanh of its last output.

    The softmax of q and k is the released code's; the equations leave the feature map open.
    """
    outputs = []
    for t in range(q.shape[0]):
        W = begin(W, reset[t])
        g = begin(y, reset[t]).tanh()
        q_t = (q[t] + _per_head(g, Rq)).softmax(-1)
        k_t = (k[t] + _per_head(g, Rk)).softmax(-1)
        v_t = v[t] + _per_head(g, Rv)
        beta_t = (beta[t] + (g * rb).sum(-1)).sigmoid()
        W = delta_write(W, k_t, v_t, beta_t)
        y = read(W, q_t)
        outputs.append(y)
    return torch.stack(outputs), W, y


def lstm(gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000.

    gates `[T, B, 4 N]` is the input's share of i, f, g, o; weight `[4 N, N]`, h and c `[B, N]`.
    """
    outputs = []
    for t in range(gates.shape[0]):
        h, c = begin(h, reset[t]), begin(c, reset[t])
        i, f, g, o = (gates[t] + h @ weight.mT).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), h, c


def _per_head(g: Tensor, R: Tensor) -> Tensor:
    """Row vector times matrix, a matrix a head: g `[B, H, V]`, R `[H, V, N]` -> `[B, H, N]`."""
    return torch.einsum("bhv,hvn->bhn", g, R)
