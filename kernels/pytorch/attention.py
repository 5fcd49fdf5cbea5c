"""Attention within a window, and the DeltaFormer: a span of steps as a few products of matrices.

A span sees S = M + C things: the M that the state holds, oldest first, and its own C steps. Everything is
differentiable as it stands; a DeltaFormer's writes depend on earlier ones by a triangular system.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference import kernel
from .apart import differentiated_apart
from .chunked import _mark_broken, _set_aside_broken
from .gated import survival

SPAN = 64
"""Most steps at once: products cost O(M + C) per step."""


@differentiated_apart
def attention(normalise: bool, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equals `reference.attention` to rounding."""
    q, k, v, decay, bias, keys, values, live, reset = inputs
    states, broken = _set_aside(keys, values, live)
    outputs = []
    for part in _spans(len(q)):
        now = _Span(reset[part], states[0], decay[part])
        seen_keys, seen_values, seen_live = now.join(k[part], v[part], *states)
        scores = _rows(q[part]) @ seen_keys.mT * q.shape[-1] ** -0.5 + now.by_age(_rows(bias[part]))
        weight = now.survival * seen_live.unsqueeze(-2)
        if normalise:
            scores = scores.masked_fill(weight == 0, -torch.inf)
            scores = scores - scores.amax(-1, keepdim=True).detach()
        weights = scores.masked_fill(~now.sees, -torch.inf).exp()
        shares = weights * now.survival
        if normalise:
            # Before the product: where a step sees itself alone, its scores then have no gradient at all.
            shares = shares / (weights * weight).sum(-1, keepdim=True)
        outputs.append(_steps(shares @ seen_values))
        states = now.end(seen_keys, seen_values, seen_live)
    return _finish(torch.cat(outputs), states, reset, broken)


@differentiated_apart
def deltaformer(first: str, second: str, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equals `reference.deltaformer` to rounding."""
    q, k, v, w, mix, alpha, beta, keys, values, live, reset = inputs
    states, broken = _set_aside(keys, values, live)
    outputs, scale, M = [], q.shape[-1] ** -0.5, states[0].shape[-2]
    for part in _spans(len(q)):
        now = _Span(reset[part], states[0])
        alpha_v = alpha[part].unsqueeze(-1) * v[part]
        seen_keys, seen_values, seen_live = now.join(k[part], alpha_v, *states)
        sees = (now.survival * seen_live.unsqueeze(-2)).unsqueeze(-3)  # [B, H, 1, C, S]
        own = torch.ones_like(now.survival[0, 0], dtype=torch.bool).tril(M - 1)
        by_group = seen_keys.unsqueeze(-3).mT
        matches = kernel(first, _rows(w[part]) @ by_group * scale, sees * own)
        matches = beta[part].movedim(0, -1).unsqueeze(-1) * (mix[..., None, None] * matches).mean(-3)
        error = seen_values[..., M:, :] - matches[..., :M] @ seen_values[..., :M, :]
        u = torch.linalg.solve_triangular(matches[..., M:], error, upper=False, unitriangular=True)
        seen_values = torch.cat((seen_values[..., :M, :], u), -2)
        read = kernel(second, _rows(q[part]) @ by_group * scale, sees) @ seen_values.unsqueeze(-3)
        outputs.append(_steps(read))
        states = now.end(seen_keys, seen_values, seen_live)
    return _finish(torch.cat(outputs), states, reset, broken)


class _Span:
    """What each of C steps sees of S = M + C things."""

    def __init__(self, reset: Tensor, keys: Tensor, decay: Tensor | None = None) -> None:
        """`keys` are those of the state."""
        self.M = keys.shape[-2]
        same = self._shares(torch.ones_like(keys[..., 0, 0]).expand(len(reset), -1, -1), reset)
        self.sees = same == 1
        """`[B, H, C, S]`: what each step sees: not what is beyond the window or an earlier episode's"""
        self.survival = same if decay is None else self._shares(decay, reset)
        """the same shape: which share of its weight is left"""

    def _shares(self, rates: Tensor, reset: Tensor) -> Tensor:
        steps, alive = survival(torch.where(reset.unsqueeze(-1), 0.0, rates).permute(1, 2, 0))
        whole = torch.cat((alive.unsqueeze(-1).expand(*alive.shape, self.M), steps), -1)
        t, place = (torch.arange(size, device=rates.device) for size in whole.shape[-2:])
        # The oldest t are beyond the window of step t.
        return torch.where(place >= t.unsqueeze(-1), whole, 0.0)

    def join(
        self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, live: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Put the span's keys and values `[C, B, H, ...]` behind those of the state."""
        ones = live.new_ones(*live.shape[:-1], len(k))
        return torch.cat((keys, _rows(k)), -2), torch.cat((values, _rows(v)), -2), torch.cat((live, ones), -1)

    def by_age(self, bias: Tensor) -> Tensor:
        """Turn a bias by age, from one step ago on, `[B, H, C, M]`, into one by place, `[B, H, C, S]`."""
        C = bias.shape[-2]
        t, place = (torch.arange(size, device=bias.device) for size in (C, self.M + C))
        age = (self.M + t.unsqueeze(-1) - place).clamp(0, self.M)
        with_present = torch.cat((torch.zeros_like(bias[..., :1]), bias), -1)
        return with_present.gather(-1, age.expand(*bias.shape[:-1], -1))

    def end(self, keys: Tensor, values: Tensor, live: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the state after the span: the last M, zero where an episode has ended since."""
        remaining = self.survival[..., -1, -self.M :]
        keys = torch.where(self.sees[..., -1, -self.M :, None], keys[..., -self.M :, :], 0.0)
        return keys, remaining.unsqueeze(-1) * values[..., -self.M :, :], remaining * live[..., -self.M :]


def _spans(steps: int) -> list[slice]:
    return [slice(start, start + SPAN) for start in range(0, steps, SPAN)]


def _rows(x: Tensor) -> Tensor:
    """Move time behind the heads, `[C, B, H, ..., size]` -> `[B, H, ..., C, size]`."""
    return x.movedim(0, -2)


def _steps(x: Tensor) -> Tensor:
    return x.movedim(-2, 0)


States = tuple[Tensor, Tensor, Tensor]


def _set_aside(keys: Tensor, values: Tensor, live: Tensor) -> tuple[States, Tensor | None]:
    """Replace by zeros what heads with inf or nan hold; also return which, `[B, H, 1, 1]` (None: none)."""
    _, broken = _set_aside_broken(torch.cat((keys, values, live.unsqueeze(-1)), -1))
    if broken is None:
        return (keys, values, live), None
    keys, values = torch.where(broken, 0.0, keys), torch.where(broken, 0.0, values)
    return (keys, values, torch.where(broken.squeeze(-1), 0.0, live)), broken


def _finish(
    y: Tensor, states: States, reset: Tensor, broken: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    keys, values, live = states
    if broken is not None:
        flat = y.flatten(3)
        flat, values = _mark_broken(flat, values, reset, broken)
        y = flat.view_as(y)
    return y, keys, values, live
