"""Delta RNN: a second fast-weight matrix reads the last output."""

from __future__ import annotations

from torch import Tensor

from ..kernels import delta_rnn, delta_rule
from ..kernels.native.shell import StepRule
from .base import State
from .registry import register
from .shell import FastWeightCore, FastWeights, MemoryTrace, StatePart


class DeltaRNNMemory(FastWeights):
    """Delta-rule W and R, `y = W q + R softmax(last y)`. State: W, R, y.

    The slow net emits q, k, v for W, k, v for R, then β for each; nothing recurrent enters it.
    """

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, (h, h, h, h, h, 1, 1))

    def state_parts(self) -> tuple[StatePart, ...]:
        matrix = StatePart("fast weights", (self.num_heads, self.head_size, self.head_size))
        return matrix, matrix, StatePart("output", (self.num_heads, self.head_size))

    def unroll(self, parts: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v, recurrent_k, recurrent_v, beta, recurrent_beta = parts
        W, R, y0 = state
        beta = beta.squeeze(-1).sigmoid()
        recurrent_beta = recurrent_beta.squeeze(-1).sigmoid()
        z, W = delta_rule(q.softmax(-1), k.softmax(-1), v, beta, W, reset)
        y, R, y_T = delta_rnn(z, recurrent_k.softmax(-1), recurrent_v, recurrent_beta, R, y0, reset)
        return y, (W, R, y_T)

    def step_rule(self) -> StepRule:
        return StepRule("delta_rnn", ("softmax", "softmax", "", "softmax", "", "sigmoid", "sigmoid"))

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        *_, beta, recurrent_beta = trace.emitted
        return {"write_strength": beta.sigmoid(), "recurrent_write_strength": recurrent_beta.sigmoid()}


@register("delta_rnn")
class DeltaRNN(FastWeightCore):
    """A Delta Net whose output also passes through recurrent fast weights. Irie et al. 2021, equation 12.

    Keys and queries pass a softmax, as in the released RL code.

    State: (W `[B, L, H, h, h]`, R `[B, L, H, h, h]`, y `[B, L, H, h]`).
    """

    memory = DeltaRNNMemory
