"""Gated Delta Net: the delta rule with decay; and a Delta Net whose writes have momentum."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..kernels import gated_delta, momentum_delta
from .backbone import FastWeightCore
from .base import State
from .delta_net import DeltaMemory
from .fast_weights import MemoryTrace, StatePart
from .features import TEMPERATURE, Map, check_temperature, slow_decay
from .linear_form import DeltaForm, delta_form
from .registry import register


class GatedDeltaMemory(DeltaMemory):
    """`W = λ W`, then `W += β (v - W k) kᵀ`. The slow net emits q, k, v, β, λ. State: W.

    Args:
        normalise: sum divides keys and queries by their sum; or none.
        decay_temperature: τ of the decay `sigmoid(x) ** (1 / τ)`; with 1 half is forgotten at every step, to
            begin with.
        delta_options: as `DeltaMemory` takes them.
    """

    supports_attention_normalisation = False
    further_gates = 1

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        feature_map: Map = "unit",
        normalise: Literal["sum", "none"] = "none",
        decay_temperature: float = TEMPERATURE,
        **delta_options: Any,
    ) -> None:
        super().__init__(
            hidden_size, num_heads, feature_map=feature_map, normalise=normalise, **delta_options
        )
        self.decay_temperature = check_temperature(decay_temperature)

    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        beta, decay = self.strength(gates[0]), slow_decay(gates[1].squeeze(-1), self.decay_temperature)
        (W,) = state
        y, W = gated_delta(q, k, v, beta, decay, W, reset)
        return y, (W,)

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm:
        decay = slow_decay(gates[1], self.decay_temperature).expand_as(k)
        return delta_form(q, k, v, self.strength(gates[0]), state[0], reset, decay)

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {**super().strengths(trace), "decay": slow_decay(trace.projections[4], self.decay_temperature)}


@register("gated_delta_net")
class GatedDeltaNet(FastWeightCore):
    """A Delta Net whose fast weights decay. Yang, Kautz, Hatamizadeh 2025; keys and queries of length 1.

    State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = λ W + β (v - λ W k) kᵀ"
    source = "Yang, Kautz, Hatamizadeh 2025"
    nets = "feedforward", "gated delta", "linear"

    memory = GatedDeltaMemory


class MomentumDeltaMemory(DeltaMemory):
    """`C = η C + β v kᵀ`, `W = W (I - β k kᵀ) + C`. The slow net emits q, k, v, β, η. State: W, C."""

    supports_attention_normalisation = False
    further_gates = 1

    def state_parts(self) -> tuple[StatePart, ...]:
        (matrix,) = super().state_parts()
        return matrix, StatePart("momentum", matrix.shape)

    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        beta, momentum = self.strength(gates[0]), gates[1].squeeze(-1).sigmoid()
        W, C = state
        y, W, C = momentum_delta(q, k, v, beta, torch.ones_like(beta), momentum, W, C, reset)
        return y, (W, C)

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm:
        form = delta_form(q, k, v, self.strength(gates[0]), state[0], reset)
        return form._replace(momentum=gates[1].squeeze(-1).sigmoid(), C=state[1])

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {**super().strengths(trace), "momentum": trace.projections[4].sigmoid()}


@register("momentum_delta_net")
class MomentumDeltaNet(FastWeightCore):
    """A Delta Net whose writes have momentum. Zhong et al. 2025, Table 2, with a write strength.

    State: (W `[B, L, H, h, h]`, C `[B, L, H, h, h]`).
    """

    equation = "C = η C + β v kᵀ; W = W - β W k kᵀ + C"
    source = "Zhong et al. 2025, table 2"
    nets = "feedforward", "momentum", "linear"

    memory = MomentumDeltaMemory
