"""Delta LSTM: an LSTM whose weights, of the input and of the last output, are fast."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from ..kernels import delta_lstm, delta_rule
from .backbone import FastWeightCore
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .features import normalized_elu
from .registry import register


class DeltaLSTMMemory(FastWeights):
    """For each of the gates i, u, o a delta-rule W and R; see `kernels.delta_lstm`. State: W, R, y, c.

    The slow net emits, gate by gate, q, k, v for W and k, v for R, then for each gate both β.

    Args:
        variant: in A the output is a softmax, and R reads with it as it is; in B, C and D with its softmax. C
            adds what W reads for u to the output, D has no sigmoid around u.
    """

    convolved = 1

    def __init__(
        self, hidden_size: int, num_heads: int, variant: Literal["A", "B", "C", "D"] = "B", **options: Any
    ) -> None:
        super().__init__(hidden_size, num_heads, (15 * (hidden_size // num_heads), 6), **options)
        self.variant = variant

    def state_parts(self) -> tuple[StatePart, ...]:
        H, h = self.num_heads, self.head_size
        matrices = StatePart("fast weights", (3 * H, h, h))
        return matrices, matrices, StatePart("output", (H, h)), StatePart("output", (H, h))

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        vectors, betas = projections
        W, R, y0, c0 = state
        by_gate = vectors.unflatten(-1, (3, 5, self.head_size)).flatten(2, 3)
        q, k, v, recurrent_k, recurrent_v = by_gate.unbind(-2)
        beta, recurrent_beta = betas.unflatten(-1, (3, 2)).flatten(2, 3).sigmoid().unbind(-1)
        z, W = delta_rule(normalized_elu(q), normalized_elu(k), v, beta, W, reset)
        written = recurrent_k.softmax(-1), recurrent_v, recurrent_beta
        y, *after = delta_lstm(z, *written, R, y0, c0, reset, self.variant)
        return y, (W, *after)

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        beta, recurrent_beta = trace.projections[1].sigmoid().unflatten(-1, (3, 2)).unbind(-1)
        return {
            "write_strength": beta.mean(-1, keepdim=True),
            "recurrent_write_strength": recurrent_beta.mean(-1, keepdim=True),
        }


@register("delta_lstm")
class DeltaLSTM(FastWeightCore):
    """An LSTM of fast weights. Irie et al. 2021, equations 20-40, with a query a gate, as in their code.

    State: (W `[B, L, 3 H, h, h]`, R `[B, L, 3 H, h, h]`, y `[B, L, H, h]`, c `[B, L, H, h]`).
    """

    equation = "an LSTM of W q + R softmax(y); all by the delta rule"
    source = "Irie et al. 2021, equations 20-40"
    nets = "feedforward", "delta", "LSTM"

    memory = DeltaLSTMMemory
