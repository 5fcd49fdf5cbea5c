"""Gated Transformer-XL: attention with relative positions, and gates in place of residual sums."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import WINDOW, SoftmaxMemory
from .base import State
from .registry import register
from .shell import FastWeightCore, FastWeights, Layer, MemoryTrace


class RelativeMemory(SoftmaxMemory):
    """Softmax attention by age, too: scores `(q + b)·k_i + (q + c)·R (p(age) - p(0))`, p sines and cosines.

    State: keys, values, what is left of their weights.

    Args:
        hidden_size: d, the width of the layer's input and output.
        num_heads: H; each head is h = d/H wide.
        window: N, how many steps besides the present one are seen.
    """

    waves: Tensor

    def __init__(self, hidden_size: int, num_heads: int, window: int = WINDOW) -> None:
        super().__init__(hidden_size, num_heads, window)
        self.to_ages = nn.Linear(hidden_size, hidden_size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, self.head_size))
        self.age_bias = nn.Parameter(torch.zeros(num_heads, self.head_size))
        self.register_buffer("waves", _waves(window, hidden_size), persistent=False)

    def by_age(self, q: Tensor) -> tuple[Tensor, Tensor]:
        ages = self.to_ages(self.waves.to(self.to_ages.weight.dtype)).to(q.dtype)
        by_head = ages.unflatten(-1, (self.num_heads, self.head_size)).permute(1, 2, 0)  # [H, h, N]
        rows = (q + self.age_bias.to(q.dtype)).unsqueeze(-2)
        bias = (rows @ by_head).squeeze(-2) * self.head_size**-0.5
        return q + self.content_bias.to(q.dtype), bias.to(q.dtype)


def _waves(window: int, size: int) -> Tensor:
    """Sines and cosines of ages from 1, less those of 0, which softmax does not see: `[window, size]`."""
    ages = torch.arange(window + 1).unsqueeze(-1)
    rates = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    waves = torch.cat(((ages * rates).sin(), (ages * rates).cos()), -1)[:, :size]
    return waves[1:] - waves[:1]


class Gate(nn.Module):
    """A GRU's gates where others add: x goes on as far as y does not replace it. Parisotto et al. 2019."""

    def __init__(self, size: int, bias: float = 2.0) -> None:
        super().__init__()
        self.from_y = nn.Linear(size, 3 * size, bias=False)
        self.from_x = nn.Linear(size, 2 * size, bias=False)
        self.from_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(torch.full((size,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (r_y, z_y, h_y), (r_x, z_x) = self.from_y(y).chunk(3, -1), self.from_x(x).chunk(2, -1)
        r, z = (r_y + r_x).sigmoid(), (z_y + z_x - self.bias).sigmoid()
        return x + z * ((h_y + self.from_reset(r * x)).tanh() - x)


class GatedLayer(Layer):
    """A layer of the shell with a gate in place of each sum, and rectified input to it."""

    def __init__(self, memory: FastWeights, hidden_size: int, ff_size: int) -> None:
        super().__init__(memory, hidden_size, ff_size)
        self.gate, self.ff_gate = Gate(hidden_size), Gate(hidden_size)

    def forward(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        y, trace = self.memory(self.memory.slow_net(self.norm(x)), state, reset)
        x = self.gate(x, self.out(y).relu())
        return self.ff_gate(x, self.ff(self.ff_norm(x)).relu()), trace


@register("gtrxl")
class GTrXL(FastWeightCore):
    """Attention with gates that begin nearly shut. Parisotto et al. 2019, "Stabilizing Transformers for RL".

    Keys and values are held as they were when written; the paper holds the layer's input and makes them anew.

    State: (keys `[B, L, H, N, h]`, values `[B, L, H, N, h]`, weights left `[B, L, H, N]`).
    """

    equation = "attention by content and age, gates for sums"
    source = "Parisotto et al. 2019"

    memory = RelativeMemory
    layer = GatedLayer
