"""The base class of memories with the writes of the generalised delta rule."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import generalised_delta
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .linear_form import DeltaForm, Writes


class GeneralisedMemory(FastWeights):
    """S times a step `W = W diag(a)`, then `W = W + (u - W e) kᵀ`; then `y = W q`. State: W."""

    @abstractmethod
    def writes(self, projections: tuple[Tensor, ...]) -> Writes:
        """Map the slow net's output, split by `sizes`, each `[T, B, H, size]`, to reads and writes."""

    def state_parts(self) -> tuple[StatePart, ...]:
        return (StatePart("fast weights", (self.num_heads, self.head_size, self.head_size)),)

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        (W,), (q, k, u, e, decay) = state, self.writes(projections)
        y, W = generalised_delta(q, k, u, e, decay, W, reset)
        return y, (W,)

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        return DeltaForm(self.writes(trace.projections), trace.before[0], trace.reset)

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor:
        return unit(keys) @ unit(query)


def unit(x: Tensor) -> Tensor:
    """Divide vectors `[..., h]` by their lengths."""
    return F.normalize(x, dim=-1)


class HeadProjection(nn.Linear):
    """The second factor of a low-rank map, across heads: `[T, B, H, rank]` -> `[T, B, H, h]`.

    The first is in the slow net, which emits `rank` numbers per head: together their rank is `H rank`.
    """

    def __init__(self, num_heads: int, rank: int, head_size: int, bias: bool = False) -> None:
        super().__init__(num_heads * rank, num_heads * head_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        # In the dtype of x, whatever the weights have and the caller autocasts to.
        bias = None if self.bias is None else self.bias.to(x.dtype)
        y = F.linear(x.flatten(-2), self.weight.to(x.dtype), bias)
        return y.to(x.dtype).unflatten(-1, (x.shape[-2], -1))


def low_rank(hidden_size: int, num_heads: int) -> int:
    """Return the rank per head, ceil(h / H), so that all heads together have rank h or a little more."""
    return -(-hidden_size // num_heads**2)


class Decay(nn.Module):
    """`exp(-exp(A) softplus(x + b))`, A per head, b per channel; `size` channels per head.

    Dao & Gu 2024, "Transformers are SSMs", as in Gated DeltaNet and Kimi Linear: exp(A) begins uniform in
    [1, 16], softplus(b) log-uniform in [0.001, 0.1].
    """

    def __init__(self, num_heads: int, size: int) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(num_heads, 1).uniform_(1, 16).log())
        begin = torch.empty(num_heads, size).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.b = nn.Parameter(begin + (-torch.expm1(-begin)).log())  # softplus⁻¹(begin)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., H, size]` -> decays between 0 and 1."""
        A, b = (p.to(x.dtype) for p in (self.A, self.b))
        return (-A.exp() * F.softplus(x + b)).exp()
