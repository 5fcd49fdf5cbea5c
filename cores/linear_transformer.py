"""Linear Transformer: fast weights that only add."""

from __future__ import annotations

from torch import Tensor

from ..kernels import sum_rule
from ..kernels.native.shell import StepRule
from .base import State
from .features import normalized_elu
from .registry import register
from .shell import FastWeightCore, FastWeights, StatePart


class SumMemory(FastWeights):
    """`W += v kᵀ`. The slow net emits q, k, v. State: W."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        h = hidden_size // num_heads
        super().__init__(hidden_size, num_heads, (h, h, h))

    def state_parts(self) -> tuple[StatePart, ...]:
        return (StatePart("fast weights", (self.num_heads, self.head_size, self.head_size)),)

    def unroll(self, parts: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v = parts
        (W,) = state
        y, W = sum_rule(normalized_elu(q), normalized_elu(k), v, W, reset)
        return y, (W,)

    def step_rule(self) -> StepRule:
        return StepRule("delta", ("normalized_elu", "normalized_elu", ""))


@register("linear_transformer")
class LinearTransformer(FastWeightCore):
    """Fast weights that only add: the sum rule, without attention normalisation.

    As in Irie et al. 2021 for RL. Rule: Katharopoulos et al. 2020; Schlag et al. 2021, section 3.1.
    State: (W `[B, L, H, h, h]`,).
    """

    memory = SumMemory
