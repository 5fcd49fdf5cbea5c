"""DeltaProduct: a Delta Net that writes several times a step."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .backbone import FastWeightCore
from .fast_weights import MemoryTrace
from .generalised import Decay, GeneralisedMemory, unit
from .linear_form import Writes
from .registry import register


class DeltaProductMemory(GeneralisedMemory):
    """`W += β_i (v_i - W k_i) k_iᵀ` for i = 1 to n; keys and queries of length 1.

    The slow net emits q, k, v, β of each write and, `gated`, a decay.

    Args:
        hidden_size: d, the width of the layer's input and output.
        num_heads: H; each head's values are h = d/H wide.
        writes: n, how often a step writes.
        beta_max: β lies between 0 and this. With 2 a write can reflect what is stored along its key: n
            reflections are a rotation if n is even.
        gated: whether the fast weights decay before a step's first write.
        options: as `FastWeights` takes them.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        writes: int = 2,
        beta_max: Literal[1, 2] = 2,
        gated: bool = False,
        **options: Any,
    ) -> None:
        if writes < 1:
            raise ValueError(f"writes is {writes}; give at least 1")
        h = hidden_size // num_heads
        sizes = (h, writes * h, writes * h, writes)
        super().__init__(hidden_size, num_heads, (*sizes, 1) if gated else sizes, **options)
        self.num_writes, self.beta_max = writes, beta_max
        self.decay = Decay(num_heads, 1) if gated else None

    def writes(self, projections: tuple[Tensor, ...]) -> Writes:
        q = unit(projections[0])
        k, v, beta = (x.unflatten(-1, (self.num_writes, -1)) for x in projections[1:4])
        k, beta = unit(k), beta.sigmoid() * self.beta_max
        decay = torch.ones_like(k)
        if self.decay is not None:
            first = self.decay(projections[4]).unsqueeze(3).expand_as(k[:, :, :, :1])
            decay = torch.cat((first, decay[:, :, :, 1:]), 3)
        return Writes(q, k, beta * v, beta * k, decay)

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        strengths = {"write_strength": trace.projections[3].sigmoid() * self.beta_max}
        return strengths if self.decay is None else strengths | {"decay": self.decay(trace.projections[4])}


@register("delta_product")
class DeltaProduct(FastWeightCore):
    """A Delta Net with n writes a step. Siems et al. 2025; with `gated` their Gated DeltaProduct.

    State: (W `[B, L, H, h, h]`,).
    """

    equation = "n times W = W + β (v - W k) kᵀ"
    source = "Siems et al. 2025"
    nets = "feedforward", "delta", "linear"

    memory = DeltaProductMemory
