"""Attention to a window of steps: memories of keys and values instead of fast weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..kernels import attention, deltaformer
from ..kernels.precision import without_autocast
from ..kernels.reference import kernel, mask_resets
from .backbone import FastWeightCore, Residual
from .base import State
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .features import slow_decay
from .linear_form import AttentionForm
from .registry import register

WINDOW = 64

_products = without_autocast(torch.matmul)

Kernel = Literal["exp", "softmax", "linear", "relu", "round"]
"""From scores to weights; round: to whole numbers, with the scores' gradient (straight-through)."""


class WindowMemory(FastWeights):
    """A cache of the last N steps' keys and values, in N slots.

    State: keys `[B, H, N, h]`, values `[B, H, N, h]`, multiplied by the decays since each slot was written,
    and the product of these decays `[B, H, N]`: 1 without decay, 0 for an empty slot.

    Args:
        sizes: how many numbers the slow net emits per head of keys, in order.
        window: N.
        _groups: how many queries share a head's keys and values.

    Raises:
        ValueError: for a window below 1.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        sizes: tuple[int, ...],
        window: int,
        _groups: int = 1,
        **options: Any,
    ) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; it must be at least 1")
        super().__init__(hidden_size, num_heads // _groups, sizes, **options)
        self.window = window
        self.key_size = hidden_size // num_heads

    def state_parts(self) -> tuple[StatePart, ...]:
        slots = (self.num_heads, self.window)
        vectors = StatePart("cache", (*slots, self.key_size))
        return vectors, vectors, StatePart("cache", slots)

    def empty_newest(self, state: State) -> State:
        """Empty the newest slot, so that no later step sees what was in it; the others age as they do.

        `state` are the rule's tensors, keys, values and the decays so far, of one layer: `[B, H, N, ...]`.
        """
        return tuple(torch.cat((part[:, :, :-1], torch.zeros_like(part[:, :, -1:])), 2) for part in state)

    def _slots(self, k: Tensor, decay: Tensor, state: State, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys that each step sees, its own last, `[T, B, H, h, N + 1]`, and their decays so far.

        Those are `[T, B, H, N + 1]`, 0 where nothing is seen; k `[T, B, H, h]`, decay `[T, B, H]`.
        """
        keys, _, live = state
        windows = torch.cat((keys.movedim(2, 0), k)).unfold(0, self.window + 1, 1)
        slot_decay = []
        for decay_t, reset_t in zip(decay.unsqueeze(-1), reset, strict=True):
            earlier = decay_t * mask_resets(live[..., -self.window :], reset_t)
            live = torch.cat((earlier, torch.ones_like(decay_t)), -1)
            slot_decay.append(live)
        return windows, torch.stack(slot_decay)


class SoftmaxMemory(WindowMemory):
    """`y = Σ w_i v_i / Σ w_i` with `w_i = exp(q·k_i / sqrt(h))`, over the last N steps and this one.

    The slow net emits q, k, v. State: see `WindowMemory`; the decays multiply the weights w_i.

    Args:
        window: N, the number of earlier steps that are attended to.
        normalise: whether weights are divided by their sum.
        gated: whether the slow net emits one more number a head, by the 16th root of whose sigmoid earlier
            weights decay at each step.
        positions: whether each head learns a bias on the scores for each age.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        window: int = WINDOW,
        normalise: bool = True,
        gated: bool = False,
        positions: bool = False,
        **options: Any,
    ) -> None:
        h = hidden_size // num_heads
        sizes = (h, h, h, 1) if gated else (h, h, h)
        super().__init__(hidden_size, num_heads, sizes, window, **options)
        self.normalise, self.gated = normalise, gated
        self.bias = nn.Parameter(torch.zeros(num_heads, window)) if positions else None

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v, *gate = projections
        decay = slow_decay(gate[0].squeeze(-1)) if gate else torch.ones_like(q[..., 0])
        q, bias = self.by_age(q)
        keys, values, slot_decay = state
        y, *after = attention(q, k, v, decay, bias, keys, values, slot_decay, reset, self.normalise)
        return y, tuple(after)

    def linear_form(self, trace: MemoryTrace) -> AttentionForm:
        q, k, v, *gate = trace.projections
        decay = slow_decay(gate[0].squeeze(-1)) if gate else torch.ones_like(q[..., 0])
        q, bias = self.by_age(q)
        ages = torch.cat((bias.flip(-1), torch.zeros_like(bias[..., :1])), -1)
        keys, slot_decay = self._slots(k, decay, trace.before, trace.reset)
        scores = _products(q.unsqueeze(-2), keys).squeeze(-2) * self.key_size**-0.5 + ages
        weights = kernel("softmax" if self.normalise else "exp", scores, slot_decay)
        # the state's values as they were written, before they decayed
        values, decay_before = trace.before[1].movedim(2, 0), trace.before[2].movedim(2, 0).unsqueeze(-1)
        u = torch.cat((torch.where(decay_before > 0, values / decay_before, 0.0), v))
        return AttentionForm(weights.unsqueeze(-2), u, trace.reset)

    def by_age(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries and the bias on the scores of earlier steps, by their age: `[T, B, H, N]`."""
        bias = q.new_zeros(()) if self.bias is None else self.bias.to(q.dtype)
        return q, bias.expand(*q.shape[:-1], self.window)

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor:
        return (keys @ query * self.key_size**-0.5).exp()

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {"decay": slow_decay(trace.projections[3])} if self.gated else {}


@register("softmax_attention")
class SoftmaxAttention(FastWeightCore):
    """Softmax attention to the last N steps. Vaswani et al. 2017; without normaliser, or gated, as in
    Zhong et al. 2025, Table 2, where numerator and normaliser are gated alike.

    State: (keys `[B, L, H, N, h]`, values `[B, L, H, N, h]`, decays `[B, L, H, N]`), the last the product of
    the decays since each slot was written, 0 for an empty slot.
    """

    equation = "y = Σ exp(q·k) v / Σ exp(q·k), last N steps"
    source = "Vaswani et al. 2017"

    memory = SoftmaxMemory


@register("transformer")
class Transformer(SoftmaxAttention):
    """Softmax attention with sinusoidal time features. Vaswani et al. 2017, with LayerNorm before each
    sub-layer (Xiong et al. 2020).

    The input projection reads `clock` sine and cosine pairs of the time in the episode, where the paper adds
    sinusoids with periods from 2π to 20,000π steps to the embedding. No LayerNorm follows the last layer.

    State: (keys `[B, L, H, N, h]`, values `[B, L, H, N, h]`, decays `[B, L, H, N]`, time `[B, 1]`), the first
    three as `SoftmaxAttention`.

    Args:
        window: N, the number of earlier steps that are attended to; the state grows with it.
    """

    equation = "y = Σ exp(q·k) v / Σ exp(q·k), x with its time"
    source = "Vaswani et al. 2017, Xiong et al. 2020"

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        ff_size: int = 512,
        residual: Residual = "sum",
        clock: int = 10,
        window: int = 256,
        **memory_options: Any,
    ) -> None:
        sizes = (hidden_size, num_layers, num_heads, ff_size)
        super().__init__(input_size, *sizes, residual, clock, window=window, **memory_options)


class DeltaFormerMemory(WindowMemory):
    """`u = α v - β Σ κ1(k_i·w) u_i` over earlier steps, `y = Σ κ2(k_i·q) u_i`.

    The slow net emits q, k, v, w, α, β. State: keys `[B, H, N, h]`, u `[B, H, N, h]`, and which slots are
    filled `[B, H, N]`, 1 or 0.

    Args:
        window: N, the number of earlier steps that are attended to.
        first: κ1, of the write. Keys have any length, so only softmax, whose weights sum to one, keeps u from
            growing without bound; the others are the paper's, which trains them on short sequences.
        second: κ2, of the read.
        gates: input for α and β that the slow net emits, of which sigmoids are taken; scalar for one learned
            number each a layer, from 1 on.
        groups: how many heads of queries share a head of keys and values; their writes are mixed by learned
            weights.

    Raises:
        ValueError: for a window or groups below 1, or groups that do not divide the heads.
    """

    convolved = 4

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        window: int = WINDOW,
        first: Kernel = "softmax",
        second: Kernel = "softmax",
        gates: Literal["input", "scalar"] = "input",
        groups: int = 1,
        **options: Any,
    ) -> None:
        if groups < 1 or num_heads % groups:
            raise ValueError(f"groups is {groups}; give a divisor of num_heads {num_heads}")
        h = hidden_size // num_heads
        sizes: tuple[int, ...] = (groups * h, h, h, groups * h)
        if gates == "input":
            sizes += (1, 1)
        super().__init__(hidden_size, num_heads, sizes, window, groups, **options)
        self.first, self.second, self.groups = first, second, groups
        self.mix = nn.Parameter(torch.randn(self.num_heads, groups)) if groups > 1 else None
        self.alpha = nn.Parameter(torch.ones(())) if gates == "scalar" else None
        self.beta = nn.Parameter(torch.ones(())) if gates == "scalar" else None

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        q, k, v, w, mix, alpha, beta = self._by_group(projections)
        keys, values, filled = state
        kernels = (self.first, self.second)
        y, *after = deltaformer(q, k, v, w, mix, alpha, beta, keys, values, filled, reset, *kernels)
        return y.flatten(-2), tuple(after)

    def _by_group(self, projections: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return q, k, v, w, the weights of the groups, α and β, as `kernels.deltaformer` takes them."""
        q, k, v, w, *gates = projections
        q, w = (x.unflatten(-1, (self.groups, self.key_size)) for x in (q, w))
        mix = q.new_ones(self.num_heads, 1) if self.mix is None else self.mix.to(q.dtype)
        if self.alpha is None or self.beta is None:
            alpha, beta = (gate.squeeze(-1).sigmoid() for gate in gates)
        else:
            alpha, beta = (x.to(q.dtype).expand(k.shape[:-1]) for x in (self.alpha, self.beta))
        return q, k, v, w, mix, alpha, beta

    def linear_form(self, trace: MemoryTrace) -> AttentionForm:
        """With a head for each query: H heads of keys, G queries each."""
        q, k, v, w, mix, alpha, beta = self._by_group(trace.projections)
        scale = self.key_size**-0.5
        keys, filled = self._slots(k, torch.ones_like(beta), trace.before, trace.reset)
        filled = filled.unsqueeze(-2)
        matches = kernel(self.first, _products(w, keys[..., :-1]) * scale, filled[..., :-1])
        erase = beta.unsqueeze(-1) * (mix.unsqueeze(-1) * matches).mean(-2)
        u = torch.cat((trace.before[1].movedim(2, 0), alpha.unsqueeze(-1) * v))
        return AttentionForm(kernel(self.second, _products(q, keys) * scale, filled), u, trace.reset, erase)

    def similarity(self, keys: Tensor, query: Tensor) -> Tensor:
        scores = keys @ query * self.key_size**-0.5
        return kernel("exp" if self.second == "softmax" else self.second, scores, torch.ones_like(scores))

    def strengths(self, trace: MemoryTrace) -> dict[str, Tensor]:
        return {"write_strength": trace.projections[5].sigmoid()} if len(trace.projections) > 4 else {}


@register("deltaformer")
class DeltaFormer(FastWeightCore):
    """Attention whose writes subtract what is read there already. Zhong et al. 2025, equations 41 and 42.

    State: (keys `[B, L, H, N, h]`, u `[B, L, H, N, h]`, filled slots `[B, L, H, N]`, 1 or 0), where H is the
    number of key heads.
    """

    equation = "u = α v - β Σ κ1(k·w) u; y = Σ κ2(k·q) u, last N"
    source = "Zhong et al. 2025, equations 41, 42"

    memory = DeltaFormerMemory
