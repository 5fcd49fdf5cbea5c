"""Recurrent Delta Net: the slow net's queries, keys, values and strengths also see the last output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import recurrent_delta
from ..kernels.precision import without_autocast
from .backbone import FastWeightCore
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .linear_form import DeltaForm, delta_form, last_outputs
from .registry import register


class RecurrentDeltaMemory(FastWeights):
    """The delta rule with slow recurrent matrices per head. The slow net emits q, k, v, β. State: W, y."""

    def __init__(self, hidden_size: int, num_heads: int, **options: Any) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, (h, h, h, 1), **options)
        # As in the released code: normal, with standard deviation 1/sqrt(h).
        self.Rq = nn.Parameter(torch.randn(num_heads, h, h) * h**-0.5)
        self.Rk = nn.Parameter(torch.randn(num_heads, h, h) * h**-0.5)
        self.Rv = nn.Parameter(torch.randn(num_heads, h, h) * h**-0.5)
        self.rb = nn.Parameter(torch.randn(num_heads, h) * h**-0.5)

    def state_parts(self) -> tuple[StatePart, ...]:
        matrix = StatePart("fast weights", (self.num_heads, self.head_size, self.head_size))
        return matrix, StatePart("output", (self.num_heads, self.head_size))

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v, beta = projections
        W, y0 = state
        slow = (self.Rq, self.Rk, self.Rv, self.rb)
        Rq, Rk, Rv, rb = (R if R.dtype is W.dtype else R.to(W.dtype) for R in slow)
        y, W, y_T = recurrent_delta(q, k, v, beta.squeeze(-1), Rq, Rk, Rv, rb, W, y0, reset)
        return y, (W, y_T)

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        q, k, v, beta = trace.projections
        W, y0 = trace.before
        g = last_outputs(y0, trace.y, trace.reset).tanh()
        Rq, Rk, Rv, rb = (R.to(W.dtype) for R in (self.Rq, self.Rk, self.Rv, self.rb))
        q, k, v = (
            x + without_autocast(torch.einsum)("tbhv,hvn->tbhn", g, R) for x, R in ((q, Rq), (k, Rk), (v, Rv))
        )
        beta = beta.squeeze(-1) + (g * rb).sum(-1)
        return delta_form(q.softmax(-1), k.softmax(-1), v, beta.sigmoid(), W, trace.reset)

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor:
        return keys.softmax(-1) @ query.softmax(-1)

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        # The rule does not return the strengths it used; they follow from its outputs.
        before = torch.cat((trace.before[-1].unsqueeze(0), trace.y[:-1]))
        # tanh(y) = 2 sigmoid(2 y) - 1, several times faster on CPUs; after a reset it is zero.
        recurrent = ((2 * before).sigmoid() * self.rb).sum(-1) * 2 - self.rb.sum(-1)
        recurrent = recurrent.masked_fill(trace.reset.unsqueeze(-1), 0)
        return {"write_strength": (trace.projections[-1].squeeze(-1) + recurrent).sigmoid()}


@register("rdn")
class RecurrentDeltaNet(FastWeightCore):
    """A Delta Net whose writes and reads also see its last output. Irie et al. 2021, equations 15-18.

    For each head, with g = tanh(y) of the step before:

        q = softmax(q + g Rq), k = softmax(k + g Rk), v = v + g Rv, β = sigmoid(β + g·rb)
        W = W + β (v - W k) kᵀ, y = W q

    The recurrent matrices are per head, as in the released code: a head sees its own last output, where the
    equations write one matrix for all heads.

    State: (W `[B, L, H, h, h]`, y `[B, L, H, h]`), y before the output projection.
    """

    equation = "W = W + β (v - W k) kᵀ; q, k, v, β also from tanh(y)"
    source = "Irie et al. 2021, equations 15-18"
    nets = "recurrent", "delta", "linear"

    memory = RecurrentDeltaMemory


@register("rdn_large")
class LargeRecurrentDeltaNet(RecurrentDeltaNet):
    """RDN with width and depth doubled, ff_size not. The 3.4 M agent of Irie et al. 2021, table 3."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 256,
        num_layers: int = 4,
        num_heads: int = 8,
        ff_size: int = 512,
        **memory_options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, num_heads, ff_size, **memory_options)
