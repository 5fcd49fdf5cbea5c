"""Delta RNN: a second fast-weight matrix reads the last output."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..kernels import delta_rnn, delta_rule
from .backbone import FastWeightCore
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .linear_form import DeltaForm, concatenate, delta_form, last_outputs
from .registry import register


class DeltaRNNMemory(FastWeights):
    """Delta-rule W and R, `y = W q + R softmax(last y)`. State: W, R, y.

    The slow net emits q, k, v for W, k, v for R, then β for each; nothing recurrent enters it.

    Args:
        variant: B, or A (equation 19), whose output is `softmax(W q + R last y)`.
    """

    convolved = 5

    def __init__(
        self, hidden_size: int, num_heads: int, variant: Literal["A", "B"] = "B", **options: Any
    ) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, (h, h, h, h, h, 1, 1), **options)
        self.variant = variant

    def state_parts(self) -> tuple[StatePart, ...]:
        matrix = StatePart("fast weights", (self.num_heads, self.head_size, self.head_size))
        return matrix, matrix, StatePart("output", (self.num_heads, self.head_size))

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v, recurrent_k, recurrent_v, beta, recurrent_beta = projections
        W, R, y0 = state
        beta = beta.squeeze(-1).sigmoid()
        recurrent_beta = recurrent_beta.squeeze(-1).sigmoid()
        z, W = delta_rule(q.softmax(-1), k.softmax(-1), v, beta, W, reset)
        rule = delta_rnn if self.variant == "B" else delta_rnn_a
        y, R, y_T = rule(z, recurrent_k.softmax(-1), recurrent_v, recurrent_beta, R, y0, reset)
        return y, (W, R, y_T)

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        """Reads W q + R p, of which variant A outputs the softmax; each step writes to W, then to R."""
        q, k, v, recurrent_k, recurrent_v, beta, recurrent_beta = trace.projections
        (W, R, y0), reset = trace.before, trace.reset
        p = last_outputs(y0, trace.y, reset)
        p = p if self.variant == "A" else p.softmax(-1)
        beta, recurrent_beta = (x.squeeze(-1).sigmoid() for x in (beta, recurrent_beta))
        return concatenate(
            delta_form(q.softmax(-1), k.softmax(-1), v, beta, W, reset),
            delta_form(p, recurrent_k.softmax(-1), recurrent_v, recurrent_beta, R, reset),
        )

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor:
        return keys.softmax(-1) @ query.softmax(-1)

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        *_, beta, recurrent_beta = trace.projections
        return {"write_strength": beta.sigmoid(), "recurrent_write_strength": recurrent_beta.sigmoid()}


def delta_rnn_a(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `y_t = softmax(z_t + R_t y_{t-1})`; arguments and results as those of `delta_rnn`.

    Equals the softmax of `delta_rnn`'s outputs except for the first step of an unroll or episode: there it
    reads with a uniform vector, and variant A with y0, or zeros where an episode begins. z is corrected by
    the difference of the two readings.
    """
    uniform = torch.full_like(y0, 1 / y0.shape[-1])
    begins = reset[0].view(-1, 1, 1)
    difference = torch.where(begins, -uniform, y0 - uniform)  # between the vectors of the first reading
    old = R.masked_fill(begins.unsqueeze(-1), 0)
    error = v[0] - _read(old, k[0])
    # The first write makes R + β error kᵀ, the first one of a later episode β v kᵀ.
    first_correction = _read(old, difference) + (beta[0] * (k[0] * difference).sum(-1)).unsqueeze(-1) * error
    strength = (beta * (k * uniform).sum(-1)).masked_fill(~reset.unsqueeze(-1), 0)
    reset_correction = -strength.unsqueeze(-1) * v
    z = torch.cat((z[:1] + first_correction, z[1:] + reset_correction[1:]))
    logits, R, _ = delta_rnn(z, k, v, beta, R, torch.zeros_like(y0), reset)
    y = logits.softmax(-1)
    return y, R, y[-1]


def _read(W: Tensor, q: Tensor) -> Tensor:
    return (W @ q.unsqueeze(-1)).squeeze(-1)


@register("delta_rnn")
class DeltaRNN(FastWeightCore):
    """A Delta Net whose output passes recurrent fast weights, too. Irie et al. 2021, equations 12 and 19.

    Keys and queries pass a softmax, as in the released RL code.

    State: (W `[B, L, H, h, h]`, R `[B, L, H, h, h]`, y `[B, L, H, h]`).
    """

    equation = "y = W q + R softmax(y); W, R by the delta rule"
    source = "Irie et al. 2021, equation 12"
    nets = "feedforward", "delta", "recurrent"

    memory = DeltaRNNMemory
