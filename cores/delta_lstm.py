"""Delta LSTM: an LSTM whose weights, of the input and of the last output, are fast."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from ..kernels import delta_lstm, delta_rule
from .backbone import FastWeightCore
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .features import normalized_elu
from .linear_form import DeltaForm, concatenate, delta_form, last_outputs
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
        W, R, y0, c0 = state
        (q, k, v, beta), (recurrent_k, recurrent_v, recurrent_beta) = self._by_gate(projections)
        z, W = delta_rule(q, k, v, beta, W, reset)
        y, *after = delta_lstm(z, recurrent_k, recurrent_v, recurrent_beta, R, y0, c0, reset, self.variant)
        return y, (W, *after)

    def _by_gate(
        self, projections: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Return q, k, v, β of W, and k, v, β of R: `[T, B, 3 H, h]`, β `[T, B, 3 H]`."""
        vectors, betas = projections
        by_gate = vectors.unflatten(-1, (3, 5, self.head_size)).flatten(2, 3)
        q, k, v, recurrent_k, recurrent_v = by_gate.unbind(-2)
        beta, recurrent_beta = betas.unflatten(-1, (3, 2)).flatten(2, 3).sigmoid().unbind(-1)
        recurrent = recurrent_k.softmax(-1), recurrent_v, recurrent_beta
        return (normalized_elu(q), normalized_elu(k), v, beta), recurrent

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        """Reads W q + R p, which enters the gates, for each gate as a head of its own: 3 H heads.

        Head after head, for the gates i, u, o; each step writes to W, then to R.
        """
        (W, R, y0, _), reset = trace.before, trace.reset
        (q, k, v, beta), (recurrent_k, recurrent_v, recurrent_beta) = self._by_gate(trace.projections)
        p = last_outputs(y0, trace.y, reset)
        p = p if self.variant == "A" else p.softmax(-1)
        return concatenate(
            delta_form(q, k, v, beta, W, reset),
            delta_form(p.repeat_interleave(3, 2), recurrent_k, recurrent_v, recurrent_beta, R, reset),
        )

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
