"""The update rules as the papers write them: one plain loop over time, in any floating dtype.

Everything else in this package is tested against these functions, forward and backward.
Shapes: q, k `[T, B, H, K]`, v `[T, B, H, V]`, beta `[T, B, H]`, reset `[T, B]` bool, W `[B, H, V, K]`.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def mask_resets(state: Tensor, reset: Tensor) -> Tensor:
    """Set the rows of `state` `[B, ...]` that begin an episode to zero.

    Selects instead of multiplying: 0 * nan is nan, and a broken memory must end with its episode.
    """
    rows = reset.view(-1, *(1,) * (state.dim() - 1))
    return torch.where(rows, torch.zeros((), dtype=state.dtype, device=state.device), state)


def __getattr__(name: str) -> object:
    if name == "begin":  # its name in version 0.2
        warnings.warn(
            "begin is now mask_resets; the old name will be removed in the next release",
            DeprecationWarning,
            2,
        )
        return mask_resets
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
        W = write(mask_resets(W, reset[t]), v[t], k[t])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Schlag et al. 2021, section 4.2: `W_t = W_{t-1} + β_t (v_t - W_{t-1} k_t) k_tᵀ`, `y_t = W_t q_t`."""
    outputs = []
    for t in range(q.shape[0]):
        W = delta_write(mask_resets(W, reset[t]), k[t], v[t], beta[t])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


def gated_sum(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """Zhong et al. 2025, Table 2: `W_t = diag(λ_t) W_{t-1} + v_t k_tᵀ`, `y_t = W_t q_t`; λ `[T, B, H, V]`."""
    outputs = []
    for t in range(q.shape[0]):
        W = write(decay[t].unsqueeze(-1) * mask_resets(W, reset[t]), v[t], k[t])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule: the delta rule on `λ_t W_{t-1}`; decay λ `[T, B, H]`."""
    outputs = []
    for t in range(q.shape[0]):
        W = delta_write(decay[t][..., None, None] * mask_resets(W, reset[t]), k[t], v[t], beta[t])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


def generalised_delta(
    q: Tensor, k: Tensor, u: Tensor, e: Tensor, decay: Tensor, W: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """A step makes S writes, `W = W diag(a)`, then `W = W + (u - W e) kᵀ`, and one read, `y_t = W_t q_t`.

    k, e and the decay a `[T, B, H, S, K]`, u `[T, B, H, S, V]`.
    """
    outputs = []
    for t in range(q.shape[0]):
        W = mask_resets(W, reset[t])
        for i in range(k.shape[3]):
            W = W * decay[t, :, :, i].unsqueeze(-2)
            W = write(W, u[t, :, :, i] - read(W, e[t, :, :, i]), k[t, :, :, i])
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W


def momentum_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    momentum: Tensor,
    W: Tensor,
    C: Tensor,
    reset: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Zhong et al. 2025: `C_t = η_t C_{t-1} + β_t v_t k_tᵀ`, `W_t = λ_t W_{t-1} (I - β_t k_t k_tᵀ) + C_t`.

    decay λ, momentum η `[T, B, H]`, C `[B, H, V, K]`.
    """
    outputs = []
    for t in range(q.shape[0]):
        W, C = decay[t][..., None, None] * mask_resets(W, reset[t]), mask_resets(C, reset[t])
        C = write(momentum[t][..., None, None] * C, beta[t].unsqueeze(-1) * v[t], k[t])
        W = write(W, -beta[t].unsqueeze(-1) * read(W, k[t]), k[t]) + C
        outputs.append(read(W, q[t]))
    return torch.stack(outputs), W, C


def delta_rnn(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Irie et al. 2021, equation 12: R learns by the delta rule, then `y_t = z_t + R_t softmax(y_{t-1})`."""
    outputs = []
    for t in range(z.shape[0]):
        R = delta_write(mask_resets(R, reset[t]), k[t], v[t], beta[t])
        y = z[t] + read(R, mask_resets(y, reset[t]).softmax(-1))
        outputs.append(y)
    return torch.stack(outputs), R, y


def delta_lstm(
    variant: str,
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y: Tensor,
    c: Tensor,
    reset: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Irie et al. 2021, equations 20-40: an LSTM without bias whose recurrent weights are R, three a head.

    z, k, v `[T, B, 3H, V]`, beta `[T, B, 3H]`, R `[B, 3H, V, V]`: head after head, for the gates i, u, o; y,
    c `[B, H, V]`.
    """
    outputs = []
    for t in range(z.shape[0]):
        R = delta_write(mask_resets(R, reset[t]), k[t], v[t], beta[t])
        y, c = mask_resets(y, reset[t]), mask_resets(c, reset[t])
        p = y if variant == "A" else y.softmax(-1)
        z_gates = z[t].unflatten(1, (-1, 3))
        i, u, o = (z_gates + read(R, p.repeat_interleave(3, 1)).unflatten(1, (-1, 3))).unbind(2)
        i, o = i.sigmoid(), o.sigmoid()
        c = i * (u if variant == "D" else u.sigmoid()) + (1 - i) * c
        y = c * o
        if variant == "A":
            y = y.softmax(-1)
        elif variant == "C":
            y = y + z_gates[:, :, 1]
        outputs.append(y)
    return torch.stack(outputs), R, y, c


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

    The softmax of q and k and matrices per head are the released code's; the equations leave the feature map
    open, and write one matrix for all heads.
    """
    outputs = []
    for t in range(q.shape[0]):
        W = mask_resets(W, reset[t])
        g = mask_resets(y, reset[t]).tanh()
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

    gates `[T, B, 4 N]`: input-to-hidden pre-activations of i, f, g, o; weight `[4 N, N]`, h and c `[B, N]`.
    """
    outputs = []
    for t in range(gates.shape[0]):
        h, c = mask_resets(h, reset[t]), mask_resets(c, reset[t])
        i, f, g, o = (gates[t] + h @ weight.mT).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), h, c


def attention(
    normalise: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bias: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention to the present step and the last M: Zhong et al. 2025, Table 2, with a window.

    decay λ `[T, B, H]`, bias `[T, B, H, M]` by age, from one step ago on. State, the newest last: the last M
    keys `[B, H, M, K]`; their values `[B, H, M, V]`, multiplied by the decays since; live `[B, H, M]`, the
    cumulative decay since the write, 0 for an empty slot.
    """
    outputs = []
    for t in range(q.shape[0]):
        rate, now = decay[t].unsqueeze(-1), torch.ones_like(live[..., :1])
        keys = torch.cat((mask_resets(keys, reset[t]), k[t].unsqueeze(-2)), -2)
        values = torch.cat((rate.unsqueeze(-1) * mask_resets(values, reset[t]), v[t].unsqueeze(-2)), -2)
        live = torch.cat((rate * mask_resets(live, reset[t]), now), -1)
        ages = torch.cat((bias[t].flip(-1), torch.zeros_like(now)), -1)
        scores = read(keys, q[t]) * q.shape[-1] ** -0.5 + ages
        if normalise:
            scores = scores - scores.masked_fill(live == 0, -torch.inf).amax(-1, keepdim=True).detach()
            scores = scores.masked_fill(live == 0, -torch.inf)
        weights = scores.exp()
        y = (weights.unsqueeze(-1) * values).sum(-2)
        outputs.append(y / (weights * live).sum(-1, keepdim=True) if normalise else y)
        keys, values, live = keys[..., 1:, :], values[..., 1:, :], live[..., 1:]
    return torch.stack(outputs), keys, values, live


KERNELS = ("exp", "softmax", "linear", "relu", "round")
"""of a DeltaFormer: the similarity function applied to q·k"""


def kernel(kind: str, scores: Tensor, live: Tensor) -> Tensor:
    """Turn scores `[..., size]` into weights, multiplied by `live`: 1, or 0 for an empty slot.

    An empty slot gets 0 whatever its score, and all slots may be empty. A fractional `live` (in tests only)
    scales the weight before softmax divides by the sum. round is to the nearest whole number, its gradient
    that of `scores`.
    """
    if kind == "softmax":
        masked = scores.masked_fill(live == 0, -torch.inf)
        largest = masked.amax(-1, keepdim=True).detach()
        weights = (masked - largest.masked_fill(largest == -torch.inf, 0)).exp() * live
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1)
    if kind == "round":
        scores = scores + (scores.round() - scores).detach()
    scores = scores.masked_fill(live == 0, 0)
    return live * (scores.exp() if kind == "exp" else scores.relu() if kind == "relu" else scores)


def deltaformer(
    first: str,
    second: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    mix: Tensor,
    alpha: Tensor,
    beta: Tensor,
    keys: Tensor,
    values: Tensor,
    live: Tensor,
    reset: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Zhong et al. 2025: `u_t = α v_t - β Σ_{i<t} κ1(k_i, w_t) u_i`, `y_t = Σ_{i<=t} κ2(k_i, q_t) u_i`.

    q, w `[T, B, H, G, K]`: G queries per key head; κ1 is weighted by mix `[H, G]`, then averaged over G.
    alpha, beta `[T, B, H]`. State as in `attention`, u for values. y `[T, B, H, G, V]`.
    """
    outputs, scale = [], q.shape[-1] ** -0.5
    for t in range(q.shape[0]):
        keys, values, live = (mask_resets(part, reset[t]) for part in (keys, values, live))
        scores = (keys.unsqueeze(-3) * w[t].unsqueeze(-2)).sum(-1) * scale
        weights = kernel(first, scores, live.unsqueeze(-2)) * mix.unsqueeze(-1)
        u = alpha[t].unsqueeze(-1) * v[t] - beta[t].unsqueeze(-1) * read(values.mT, weights.mean(-2))
        keys = torch.cat((keys, k[t].unsqueeze(-2)), -2)
        values = torch.cat((values, u.unsqueeze(-2)), -2)
        live = torch.cat((live, torch.ones_like(live[..., :1])), -1)
        scores = (keys.unsqueeze(-3) * q[t].unsqueeze(-2)).sum(-1) * scale
        outputs.append(kernel(second, scores, live.unsqueeze(-2)) @ values)
        keys, values, live = keys[..., 1:, :], values[..., 1:, :], live[..., 1:]
    return torch.stack(outputs), keys, values, live


def gru(gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Cho et al. 2014, with the reset gate after the product, as in `torch.nn.GRU`.

    gates `[T, B, 3 N]`: input-to-hidden pre-activations of r, z, n; weight `[3 N, N]`, bias `[3 N]`,
    h `[B, N]`.
    """
    outputs = []
    for t in range(gates.shape[0]):
        h = mask_resets(h, reset[t])
        (r, z, n), (on_r, on_z, on_n) = gates[t].chunk(3, -1), (h @ weight.mT + bias).chunk(3, -1)
        r, z = (r + on_r).sigmoid(), (z + on_z).sigmoid()
        h = (1 - z) * (n + r * on_n).tanh() + z * h
        outputs.append(h)
    return torch.stack(outputs), h


def _per_head(g: Tensor, R: Tensor) -> Tensor:
    """Row vector times each head's matrix: g `[B, H, V]`, R `[H, V, N]` -> `[B, H, N]`."""
    return torch.einsum("bhv,hvn->bhn", g, R)
