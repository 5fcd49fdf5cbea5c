"""RWKV-7: fast weights with a removal key, and a decay and a learning rate per key channel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import generalised_delta
from .backbone import FastWeightCore
from .base import State
from .fast_weights import MemoryTrace
from .generalised import GeneralisedMemory, HeadProjection, low_rank, unit
from .linear_form import DeltaForm, Writes, at_once, concatenate, stack_writes
from .registry import register

MAX_DECAY_RATE = math.exp(-0.5)
"""Bounds the fastest forgetting: the decay is at least exp(-MAX_DECAY_RATE) = 0.545."""


class RWKV7Memory(GeneralisedMemory):
    """`W = W (diag(w) - κ (a ⊙ κ)ᵀ) + v kᵀ`, κ of length 1; then `y = W r + (r · ρ ⊙ k) v`.

    The slow net emits r, k, v and low-rank inputs of w and a (rank h each). κ is k ⊙ ξ divided by its length,
    k is scaled by 1 + (a - 1) α. There is no token shift: `short_conv` mixes neighbouring steps.
    """

    def __init__(self, hidden_size: int, num_heads: int, **options: Any) -> None:
        h, rank = hidden_size // num_heads, low_rank(hidden_size, num_heads)
        super().__init__(hidden_size, num_heads, (h, h, h, rank, rank), **options)
        self.to_decay, self.to_rate = (HeadProjection(num_heads, rank, h, bias=True) for _ in range(2))
        self.xi, self.alpha, self.rho = (
            nn.Parameter(torch.full((num_heads, h), x)) for x in (0.71, 1.02, -0.04)
        )
        with torch.no_grad():  # as released: channels from slow to fast
            self.to_decay.bias.copy_(6 * torch.linspace(0, 1, hidden_size).square() - 5.5)
            self.to_rate.bias.fill_(-0.19)

    def _rates(self, projections: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return w and a `[T, B, H, h]`."""
        w = (-MAX_DECAY_RATE * self.to_decay(projections[3].tanh()).sigmoid()).exp()
        return w, self.to_rate(projections[4]).sigmoid()

    def writes(self, projections: tuple[Tensor, ...]) -> Writes:
        r, k, v, *_ = projections
        w, a = self._rates(projections)
        removal, k = unit(k * self.xi.to(k.dtype)), k * (1 + (a - 1) * self.alpha.to(k.dtype))
        zero, one = torch.zeros_like(k), torch.ones_like(k)
        return Writes(
            r,
            k=stack_writes(a * removal, k),
            u=stack_writes(zero, v),
            e=stack_writes(removal / w, zero),
            decay=stack_writes(w, one),
        )

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        (W,), (r, k, u, e, decay) = state, self.writes(projections)
        y, W = generalised_delta(r, k, u, e, decay, W, reset)
        return y + self._match(r, k) * projections[2], (W,)

    def _match(self, r: Tensor, k: Tensor) -> Tensor:
        """Return r · ρ ⊙ k, with k the key of the second write: `[T, B, H, 1]`."""
        return (r * self.rho.to(r.dtype) * k[..., 1, :]).sum(-1, keepdim=True)

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        """With a third write: of v to one more column of W, which only the same step reads."""
        form = super().linear_form(trace)
        match = self._match(form.writes.q, form.writes.k)
        return concatenate(form, at_once(match, trace.projections[2], trace.reset))

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor:
        return keys @ query

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        w, a = self._rates(trace.projections)
        return {"write_strength": a, "decay": w}


@register("rwkv7")
class RWKV7(FastWeightCore):
    """The memory of RWKV-7 in the backbone of the others. Peng et al. 2025, "RWKV-7 Goose".

    State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = W (diag(w) - κ (a ⊙ κ)ᵀ) + v kᵀ"
    source = "Peng et al. 2025"
    nets = "feedforward", "gated delta", "linear"

    memory = RWKV7Memory
