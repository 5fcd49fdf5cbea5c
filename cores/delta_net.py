"""Delta Net: fast weights written by the delta rule."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..kernels import delta_rule
from .backbone import FastWeightCore
from .base import State
from .fast_weights import MemoryTrace
from .linear import LinearMemory, read_before
from .linear_form import DeltaForm, delta_form
from .registry import register


class DeltaMemory(LinearMemory):
    """`W += β (v - W k) kᵀ`. The slow net emits q, k, v, β. State: W; with `normalise` attention also Σ k.

    Args:
        beta_max: β lies between 0 and this. With unit keys, 2 allows negative eigenvalues: a write then
            reflects what is stored under its key.
        beta_start: initial β, as a fraction of beta_max.
        linear_options: as `LinearMemory` takes them.

    Raises:
        ValueError: for a beta_start outside (0, 1), and as `LinearMemory`.
    """

    erases = True  # refuses feature maps with long keys
    further_gates: ClassVar[int] = 0
    """Number of gates that the slow net emits per head after β."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        beta_max: Literal[1, 2] = 1,
        beta_start: float = 0.5,
        **linear_options: Any,
    ) -> None:
        super().__init__(
            hidden_size, num_heads, _gate_sizes=(1,) * (1 + self.further_gates), **linear_options
        )
        if beta_max == 2 and self.features.feature_map == "root2":
            raise ValueError(
                "beta_max 2 with feature_map root2: writes would grow without bound; give unit, or beta_max 1"
            )
        if not 0 < beta_start < 1:
            raise ValueError(f"beta_start is {beta_start}; give a share between 0 and 1")
        self.beta_max = beta_max
        self._beta_bias = math.log(beta_start / (1 - beta_start))

    def strength(self, beta: Tensor) -> Tensor:
        """Map what the slow net emits `[T, B, H, 1]` to the write strength `[T, B, H]`."""
        beta = (beta.squeeze(-1) + self._beta_bias).sigmoid()
        return beta if self.beta_max == 1 else beta * self.beta_max

    def write_read(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> tuple[Tensor, State]:
        k, beta = self._write(k, gates[0], state, reset)
        y, W = delta_rule(q, k, v, beta, state[0], reset)
        return y, (W,)  # `unroll` of the base class adds Σ k

    def rule_form(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, ...], state: State, reset: Tensor
    ) -> DeltaForm:
        k, beta = self._write(k, gates[0], state, reset)
        return delta_form(q, k, v, beta, state[0], reset)

    def _write(self, k: Tensor, beta: Tensor, state: State, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and strengths `[T, B, H]` of the delta rule, from β as the slow net emits it."""
        beta, (_, *sums) = self.strength(beta), state
        if not sums:
            return k, beta
        # Correct the normalised reading W k / (z·k), with z = Σ k so far: k ← k / (z·k), β ← β (z·k).
        norm = read_before(k, sums[0], reset)
        norm = torch.where(norm == 0, torch.ones_like(norm), norm)
        return k / norm, beta * norm.squeeze(-1)

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {"write_strength": self.strength(trace.projections[3])}


@register("delta_net")
class DeltaNet(FastWeightCore):
    """Fast weights that a write corrects: the delta rule. Schlag et al. 2021, section 4.2.

    State: (W `[B, L, H, h, h]`,).
    """

    equation = "W = W + β (v - W k) kᵀ"
    source = "Schlag et al. 2021"
    nets = "feedforward", "delta", "linear"

    memory = DeltaMemory
