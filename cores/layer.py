"""One layer of the backbone: residual or GRU-gated sub-layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import State
from .fast_weights import FastWeights, MemoryTrace


class Layer(nn.Module):
    """One layer of the backbone: a fast-weight and a feedforward sub-layer, pre-norm and residual."""

    def __init__(self, memory: FastWeights, hidden_size: int, ff_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.memory = memory
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.ff_norm = nn.LayerNorm(hidden_size)
        self.ff = nn.Sequential(nn.Linear(hidden_size, ff_size), nn.ReLU(), nn.Linear(ff_size, hidden_size))

    def forward(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        y, trace = self.memory(self.memory.slow_net(self.norm(x)), state, reset)
        x = x + self.out(y)
        return x + self.ff(self.ff_norm(x)), trace


class Gate(nn.Module):
    """GTrXL's GRU gate in place of the residual sum x + y. Parisotto et al. 2019."""

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


class GRUGatedBlock(Layer):
    """A layer of the backbone with a gate in place of each residual sum, and ReLU on what it adds."""

    def __init__(self, memory: FastWeights, hidden_size: int, ff_size: int) -> None:
        super().__init__(memory, hidden_size, ff_size)
        self.gate, self.ff_gate = Gate(hidden_size), Gate(hidden_size)

    def forward(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        y, trace = self.memory(self.memory.slow_net(self.norm(x)), state, reset)
        x = self.gate(x, self.out(y).relu())
        return self.ff_gate(x, self.ff(self.ff_norm(x)).relu()), trace
