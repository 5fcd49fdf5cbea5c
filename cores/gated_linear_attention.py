"""Gated linear attention: fast weights that add, and decay."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..kernels import gated_sum, generalised_delta
from .backbone import FastWeightCore
from .base import State
from .fast_weights import MemoryTrace
from .features import TEMPERATURE, check_temperature, slow_decay
from .linear import LinearMemory
from .linear_form import DeltaForm, one_write, sum_form
from .registry import register


class GatedSumMemory(LinearMemory):
    """`W = diag(λ) W + v kᵀ`. The slow net emits q, k, v, λ. State: W.

    Args:
        gate: one decay a head, as in RetNet and Mamba-2, one for each of its h values, or one for each of its
            h channels of keys, as in Yang et al. 2024.
        decay_temperature: τ of the decay `sigmoid(x) ** (1 / τ)`, from Yang et al. 2024; Zhong et al. have
            1, with which half is forgotten at every step, to begin with.
        linear_options: as `LinearMemory` takes them.
    """

    supports_attention_normalisation = False

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        gate: Literal["head", "value", "key"] = "head",
        decay_temperature: float = TEMPERATURE,
        **linear_options: Any,
    ) -> None:
        size = 1 if gate == "head" else hidden_size // num_heads
        super().__init__(hidden_size, num_heads, _gate_sizes=(size,), **linear_options)
        if gate == "key" and self.features.size != size:
            raise ValueError(
                f"gate key has {size} decays a head, feature_map {self.features.feature_map} has "
                f"{self.features.size} features; give another map, or gate value"
            )
        self.gate, self.decay_temperature = gate, check_temperature(decay_temperature)

    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        decay, (W,) = slow_decay(gates[0], self.decay_temperature), state
        if self.gate == "key":
            y, W = generalised_delta(*one_write(q, k, v, torch.zeros_like(k), decay), W, reset)
            return y, (W,)
        y, W = gated_sum(q, k, v, decay.expand_as(v), W, reset)
        return y, (W,)

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm:
        decay = slow_decay(gates[0], self.decay_temperature)
        if self.gate == "value":
            return sum_form(q, k, v, state[0], reset)._replace(value_decay=decay)
        return sum_form(q, k, v, state[0], reset, decay.expand_as(k))

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {"decay": slow_decay(trace.projections[3], self.decay_temperature)}


@register("gated_linear_attention")
class GatedLinearAttention(FastWeightCore):
    """Fast weights that add and decay. Zhong et al. 2025, Table 2; with one gate a head, equations 30 and 31.

    With `gate key` it is that of Yang et al. 2024, "Gated Linear Attention Transformers with
    Hardware-Efficient Training". State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = λ W + v kᵀ"
    source = "Zhong et al. 2025, table 2"
    nets = "feedforward", "gated sum", "linear"

    memory = GatedSumMemory


class GatedRuleMemory(LinearMemory):
    """`W = (1 - β) W + β v kᵀ`. The slow net emits q, k, v, β. State: W."""

    supports_attention_normalisation = False

    def __init__(self, hidden_size: int, num_heads: int, **linear_options: Any) -> None:
        super().__init__(hidden_size, num_heads, _gate_sizes=(1,), **linear_options)

    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        beta, (W,) = gates[0].sigmoid(), state
        y, W = gated_sum(q, k, beta * v, (1 - beta).expand_as(v), W, reset)
        return y, (W,)

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm:
        beta = gates[0].sigmoid()
        return sum_form(q, k, beta * v, state[0], reset, (1 - beta).expand_as(k))

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {"write_strength": trace.projections[3].sigmoid()}


@register("gated_rule")
class GatedRule(FastWeightCore):
    """Fast weights of which each write replaces a share, whatever its key. Peng et al. 2021, section 3.2.

    State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = (1 - β) W + β v kᵀ"
    source = "Peng et al. 2021"
    nets = "feedforward", "gated sum", "linear"

    memory = GatedRuleMemory
