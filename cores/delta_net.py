"""Delta Net: fast weights that correct what they hold."""

from __future__ import annotations

from torch import Tensor

from ..kernels import delta_rule
from ..kernels.native.shell import StepRule
from .base import State
from .features import normalized_elu
from .registry import register
from .shell import FastWeightCore, FastWeights, MemoryTrace, StatePart


class DeltaMemory(FastWeights):
    """`W += β (v - W k) kᵀ`. The slow net emits q, k, v, β. State: W."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, (h, h, h, 1))

    def state_parts(self) -> tuple[StatePart, ...]:
        return (StatePart("fast weights", (self.num_heads, self.head_size, self.head_size)),)

    def unroll(self, parts: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v, beta = parts
        (W,) = state
        y, W = delta_rule(normalized_elu(q), normalized_elu(k), v, beta.squeeze(-1).sigmoid(), W, reset)
        return y, (W,)

    def step_rule(self) -> StepRule:
        return StepRule("delta", ("normalized_elu", "normalized_elu", "", "sigmoid"))

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {"write_strength": trace.emitted[-1].sigmoid()}


@register("delta_net")
class DeltaNet(FastWeightCore):
    """Fast weights that a write corrects: the delta rule. Schlag et al. 2021, section 4.2.

    State: (W `[B, L, H, h, h]`,).
    """

    memory = DeltaMemory
