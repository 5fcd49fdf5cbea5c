"""Linear Transformer: fast weights that only add."""

from __future__ import annotations

from torch import Tensor

from ..kernels import sum_rule
from .backbone import FastWeightCore
from .base import State
from .linear import LinearMemory
from .linear_form import DeltaForm, sum_form
from .registry import register


class SumMemory(LinearMemory):
    """`W += v kᵀ`. The slow net emits q, k, v. State: W; with `normalise` attention also Σ k."""

    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        y, W = sum_rule(q, k, v, state[0], reset)
        return y, (W,)

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm:
        return sum_form(q, k, v, state[0], reset)


@register("linear_transformer")
class LinearTransformer(FastWeightCore):
    """Fast weights that only add: the sum rule, without attention normalisation unless asked for.

    As in Irie et al. 2021 for RL. Rule: Katharopoulos et al. 2020; Schlag et al. 2021, section 3.1.
    State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = W + v kᵀ"
    source = "Katharopoulos et al. 2020; Schlag et al. 2021"
    nets = "feedforward", "sum", "linear"

    memory = SumMemory
