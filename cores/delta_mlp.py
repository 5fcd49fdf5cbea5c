"""Delta MLP: blocks of two fast-weight layers with a nonlinearity between."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels import delta_rule
from .backbone import FastWeightCore
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .features import normalized_elu
from .linear_form import DeltaForm, at_once, concatenate, delta_form
from .registry import register

MAX_BLOCKS = 100
"""Maximum number of blocks in a layer: more are a slip of the keyboard."""


class DeltaMLPMemory(FastWeights):
    """`x += W2 f(W1 f(LN x))` in every block, from x = q; all W learn by the delta rule.

    f is the feature map of keys, too: ELU + 1 divided by its sum. The slow net emits q, then for every block
    k, v, k, v and two β. Values written into W1 and keys of W2 are 4 h wide. State: W1 and W2 of each block.

    Args:
        blocks: K.
        published: whether the slow net also emits the 10 K h numbers a head that the published one does and
            never uses.

    Raises:
        ValueError: for blocks out of range.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, blocks: int = 1, published: bool = False, **options: Any
    ) -> None:
        if not 1 <= blocks <= MAX_BLOCKS:
            raise ValueError(f"blocks is {blocks}; give 1 to {MAX_BLOCKS}")
        h = hidden_size // num_heads
        sizes = (h, *(h, 4 * h, 4 * h, h, 1, 1) * blocks)
        if published:
            sizes += (10 * blocks * h,)
        super().__init__(hidden_size, num_heads, sizes, **options)
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(blocks))

    def state_parts(self) -> tuple[StatePart, ...]:
        h = self.head_size
        shapes = ((self.num_heads, 4 * h, h), (self.num_heads, h, 4 * h))
        return tuple(StatePart("fast weights", shape) for shape in shapes) * len(self.norms)

    def form_columns(self) -> dict[int, int]:
        """Each W2, behind the column that only its own step reads."""
        return {2 * i + 1: 1 + 4 * self.head_size * i for i in range(len(self.norms))}

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        x, after = projections[0], state[:0]
        for i, (W1, W2) in enumerate(zip(state[::2], state[1::2], strict=True)):
            second, W1 = self._first_layer(i, x, projections, W1, reset)
            y, W2 = delta_rule(*second, W2, reset)
            x, after = x + y, (*after, W1, W2)
        return x, after

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        """Of q, which only its own step reads, then of each W2; what W1 puts out counts as given."""
        projections, reset = trace.projections, trace.reset
        x = projections[0]
        form = at_once(torch.ones_like(x[..., :1]), x, reset)
        for i, (W1, W2) in enumerate(zip(trace.before[::2], trace.before[1::2], strict=True)):
            second, _ = self._first_layer(i, x, projections, W1, reset)
            form = concatenate(form, delta_form(*second, W2, reset))
            x = x + delta_rule(*second, W2, reset)[0]
        return form

    def _first_layer(
        self, block: int, x: Tensor, projections: tuple[Tensor, ...], W1: Tensor, reset: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Compute f(W1 f(LN x)); return it as W2's q, with W2's k, v, β, and W1 after the last step."""
        k1, v1, k2, v2, beta1, beta2 = projections[1 + 6 * block : 7 + 6 * block]
        beta1, beta2 = (beta.squeeze(-1).sigmoid() for beta in (beta1, beta2))
        y = normalized_elu(_normalized(x, cast(nn.LayerNorm, self.norms[block])))
        y, W1 = delta_rule(y, normalized_elu(k1), v1, beta1, W1, reset)
        return (normalized_elu(y), normalized_elu(k2), v2, beta2), W1

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        betas = [part for i in range(len(self.norms)) for part in trace.projections[5 + 6 * i : 7 + 6 * i]]
        return {"write_strength": torch.cat(betas, -1).sigmoid().mean(-1, keepdim=True)}


def _normalized(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """LayerNorm in the dtype of x, whatever the weights have and the caller autocasts to."""
    weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
    return F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps).to(x.dtype)


@register("delta_mlp")
class DeltaMLP(FastWeightCore):
    """A Delta Net of two and more fast layers. Irie et al. 2021, section 3.1, as in the released code.

    The paper has a softmax between the fast layers; the code, and this, features of keys after a LayerNorm,
    and a residual connection around each block.

    State: (W1 `[B, L, H, 4 h, h]`, W2 `[B, L, H, h, 4 h]`) for each block.
    """

    equation = "y = q + W2 φ(W1 φ(LN q)); both by the delta rule"
    source = "Irie et al. 2021, section 3.1"
    nets = "feedforward", "delta", "deep"

    memory = DeltaMLPMemory
