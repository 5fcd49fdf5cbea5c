"""Delta-Delta Net: fast weights whose slow net are fast weights, too."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..kernels import delta_rule
from .backbone import FastWeightCore
from .base import State
from .fast_weights import MemoryTrace, StatePart
from .linear import LinearMemory
from .linear_form import DeltaForm, delta_form
from .registry import register


class DeltaDeltaMemory(LinearMemory):
    """M learns by the delta rule, and what is read from it are q, k, v, β by which W does. State: M, W.

    The slow net emits q and k, a value of `3 h + 1` numbers, and β for M.
    """

    supports_attention_normalisation = False
    erases = True  # as in `DeltaMemory`

    def __init__(self, hidden_size: int, num_heads: int, **linear_options: Any) -> None:
        values = 3 * (hidden_size // num_heads) + 1
        super().__init__(hidden_size, num_heads, _gate_sizes=(1,), _num_values=values, **linear_options)

    def state_parts(self) -> tuple[StatePart, ...]:
        (W,) = super().state_parts()
        heads, h, size = W.shape
        return StatePart("fast weights", (heads, 3 * h + 1, size)), W

    def form_columns(self) -> dict[int, int]:
        return {1: 0}  # W alone

    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        M, W = state
        (q, k, v, beta), M = self._slow_net(q, k, v, gates, M, reset)
        y, W = delta_rule(q, k, v, beta, W, reset)
        return y, (M, W)

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm:
        """That of W; what is read from M counts as given."""
        M, W = state
        projections, _ = self._slow_net(q, k, v, gates, M, reset)
        return delta_form(*projections, W, reset)

    def _slow_net(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], M: Tensor, reset: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Read q, k, v, β of W from M; return them, and M after the last step."""
        projections, M = delta_rule(q, k, v, gates[0].squeeze(-1).sigmoid(), M, reset)
        q, k, v, beta = projections.split((*[self.head_size] * 3, 1), -1)
        q, k = self.features(q), self.features(k)
        return (q, k, v, beta.squeeze(-1).sigmoid()), M

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {"write_strength": trace.projections[3].sigmoid()}


@register("delta_delta_net")
class DeltaDeltaNet(FastWeightCore):
    """A Delta Net whose queries, keys, values and strengths come from another. Irie et al. 2021, appendix.

    State: (M `[B, L, H, 3 h + 1, h]`, W `[B, L, H, h, h]`).
    """

    equation = "q, k, v, β of W are read from M; both by the delta rule"
    source = "Irie et al. 2021"
    nets = "Delta Net", "delta", "linear"

    memory = DeltaDeltaMemory
