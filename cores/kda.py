"""Kimi Delta Attention and Gated DeltaNet-2: delta rules with a decay per key channel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .backbone import FastWeightCore
from .fast_weights import MemoryTrace
from .generalised import Decay, GeneralisedMemory, HeadProjection, low_rank, unit
from .linear_form import Writes, one_write
from .registry import register


class KDAMemory(GeneralisedMemory):
    """`W = W diag(α)`, then `W += β (v - W k) kᵀ`; keys and queries of length 1.

    The slow net emits q, k, v, β and a low-rank input of α (rank h).
    """

    def __init__(
        self, hidden_size: int, num_heads: int, *, _gate_sizes: tuple[int, ...] = (1,), **options: Any
    ) -> None:
        h, rank = hidden_size // num_heads, low_rank(hidden_size, num_heads)
        super().__init__(hidden_size, num_heads, (h, h, h, *_gate_sizes, rank), **options)
        self.to_decay = HeadProjection(num_heads, rank, h)
        self.decay = Decay(num_heads, h)

    def writes(self, projections: tuple[Tensor, ...]) -> Writes:
        q, k, v, beta, low = projections
        k, beta = unit(k), beta.sigmoid()
        return one_write(unit(q), k, beta * v, beta * k, self.decay(self.to_decay(low)))

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        *_, beta, low = trace.projections
        return {"write_strength": beta.sigmoid(), "decay": self.decay(self.to_decay(low))}


@register("kda")
class KimiDeltaAttention(FastWeightCore):
    """A gated Delta Net with a decay per key channel. Kimi Team 2025, "Kimi Linear".

    State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = W diag(α) + β (v - W diag(α) k) kᵀ"
    source = "Kimi Team 2025"
    nets = "feedforward", "gated delta", "linear"

    memory = KDAMemory


class GatedDelta2Memory(KDAMemory):
    """`W = W diag(α)`, then `W += (w ⊙ v - W (b ⊙ k)) kᵀ`: separate erase and write gates, per channel.

    The slow net emits q, k, v, b, w and a low-rank input of α (rank h).
    """

    def __init__(self, hidden_size: int, num_heads: int, **options: Any) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, _gate_sizes=(h, h), **options)

    def writes(self, projections: tuple[Tensor, ...]) -> Writes:
        q, k, v, b, w, low = projections
        k = unit(k)
        return one_write(unit(q), k, w.sigmoid() * v, b.sigmoid() * k, self.decay(self.to_decay(low)))

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        *_, b, w, low = trace.projections
        strengths = {"write_strength": w.sigmoid(), "erase_strength": b.sigmoid()}
        return {**strengths, "decay": self.decay(self.to_decay(low))}


@register("gated_delta_net_2")
class GatedDeltaNet2(FastWeightCore):
    """Kimi Delta Attention with separate erase and write gates. Gated DeltaNet-2, 2026.

    State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = W diag(α) + (w ⊙ v - W diag(α) (b ⊙ k)) kᵀ"
    source = "arXiv 2605.22791"
    nets = "feedforward", "gated delta", "linear"

    memory = GatedDelta2Memory
