"""Gated Transformer-XL: attention with relative positions, and GRU gates instead of residual sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .attention import WINDOW, SoftmaxMemory
from .backbone import FastWeightCore
from .registry import register


class RelativeMemory(SoftmaxMemory):
    """Softmax attention with scores `(q + b)·k_i + (q + c)·R (p(age) - p(0))`, p sines and cosines.

    State: as of `SoftmaxMemory`.
    """

    def __init__(self, hidden_size: int, num_heads: int, window: int = WINDOW, **options: Any) -> None:
        super().__init__(hidden_size, num_heads, window, **options)
        self.to_ages = nn.Linear(hidden_size, hidden_size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, self.head_size))
        self.age_bias = nn.Parameter(torch.zeros(num_heads, self.head_size))
        self.waves = nn.Buffer(_waves(window, hidden_size), persistent=False)

    def by_age(self, q: Tensor) -> tuple[Tensor, Tensor]:
        ages = self.to_ages(self.waves.to(self.to_ages.weight.dtype)).to(q.dtype)
        ages = ages.unflatten(-1, (self.num_heads, self.head_size))
        bias = torch.einsum("...hd,nhd->...hn", q + self.age_bias.to(q.dtype), ages) * self.head_size**-0.5
        return q + self.content_bias.to(q.dtype), bias.to(q.dtype)


def _waves(window: int, size: int) -> Tensor:
    """Sines and cosines of ages from 1 minus those of age 0, a constant shift of scores: `[window, size]`."""
    ages = torch.arange(window + 1).unsqueeze(-1)
    rates = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    waves = torch.cat(((ages * rates).sin(), (ages * rates).cos()), -1)[:, :size]
    return waves[1:] - waves[:1]


@register("gtrxl")
class GTrXL(FastWeightCore):
    """Attention with gates that begin nearly shut. Parisotto et al. 2019, "Stabilizing Transformers for RL".

    Keys and values are cached as written; the paper caches the layer's inputs and projects them anew.

    State: (keys `[B, L, H, N, h]`, values `[B, L, H, N, h]`, decays `[B, L, H, N]`), as `SoftmaxAttention`.
    """

    equation = "relative-position attention, GRU gates for sums"
    source = "Parisotto et al. 2019"

    memory = RelativeMemory

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        ff_size: int = 512,
        clock: int = 0,
        **memory_options: Any,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, num_heads, ff_size, "gate", clock, **memory_options
        )
