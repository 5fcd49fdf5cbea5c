"""One layer of the shell: sub-layers that add what they find to their input, or gates between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.native import dense, known
from .base import State
from .fast_weights import FastWeights, MemoryTrace, same_in_c


class Layer(nn.Module):
    """One layer of the shell: a fast-weight sub-layer and a feedforward one, each added to its input."""

    def __init__(self, memory: FastWeights, hidden_size: int, ff_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.memory = memory
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.ff_norm = nn.LayerNorm(hidden_size)
        self.ff = nn.Sequential(nn.Linear(hidden_size, ff_size), nn.ReLU(), nn.Linear(ff_size, hidden_size))

    def forward(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        modules: Any = self._modules.values()
        norm, memory, out, ff_norm, _ = modules
        weights = self.weights()
        if weights and dense.takes(x, weights):
            y, trace = memory(dense.normalized_linear(x, norm.eps, *weights[:4]), state, reset)
            return dense.residual_feedforward(x, y, ff_norm.eps, *weights[4:]), trace
        y, trace = memory(memory.slow_net(norm(x)), state, reset)
        x = x + out(y)
        return x + self.ff(ff_norm(x)), trace

    def in_c(self) -> tuple[Any, list[Any]]:
        """Return what C must know of this layer, and its parameters; None and none where C cannot step it."""
        if type(self) is not Layer:
            return None, []
        modules: Any = self._modules.values()
        norm, memory, _, ff_norm, _ = modules
        weights = self.weights()
        inside = (self, memory, *memory._modules.values())
        hooked = any(map(_is_hooked, inside))
        rule = memory.step_rule() if same_in_c(memory.__class__) else None
        if not weights or rule is None or hooked:
            return None, []
        kind = memory.num_heads, norm.eps, ff_norm.eps, rule.rule, rule.maps, rule.degree
        return kind, [*weights, *rule.slow, *[None] * (4 - len(rule.slow))]

    def known(
        self,
        x: Tensor,
        state: State,
        reset: Tensor,
        values: Sequence[Tensor],
        after: State,
        weights: list[Any],
    ) -> tuple[Tensor, MemoryTrace]:
        """Do as `forward`; `values` has the slow net's output, the three of `known.residual_feedforward`, and
        what the memory kept."""
        modules: Any = self._modules.values()
        norm, memory, _, ff_norm, _ = modules
        emitted, *others = values[:4]
        emitted = known.normalized_linear(emitted, x, norm.eps, *weights[:4])
        y, trace = memory(emitted, state, reset, values[4:], after)
        return known.residual_feedforward(others, x, y, ff_norm.eps, *weights[4:12]), trace

    def weights(self) -> list[Any]:
        """List the parameters but for the memory's own; none at all if a module is not as made."""
        modules: Any = self._modules.values()
        norm, memory, out, ff_norm, ff = modules
        if _is_hooked(ff):
            return []
        return weights_of(
            norm, memory._modules["slow_net"], out, ff_norm, *ff._modules.values(), kinds=_LAYER
        )


class Gate(nn.Module):
    """A GRU's gates where others add: x goes on as far as y does not replace it. Parisotto et al. 2019."""

    def __init__(self, size: int, bias: float = 2.0) -> None:
        super().__init__()
        self.from_y = nn.Linear(size, 3 * size, bias=False)
        self.from_x = nn.Linear(size, 2 * size, bias=False)
        self.from_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(torch.full((size,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        (r_y, z_y, h_y), (r_x, z_x) = self.from_y(y).chunk(3, -1), self.from_x(x).chunk(2, -1)
        r, z = (r_y + r_x).sigmoid(), (z_y + z_x - self.bias).sigmoid()
        return x + z * ((h_y + self.from_reset(r * x)).tanh() - x)


class GatedLayer(Layer):
    """A layer of the shell with a gate in place of each sum, and rectified input to it."""

    def __init__(self, memory: FastWeights, hidden_size: int, ff_size: int) -> None:
        super().__init__(memory, hidden_size, ff_size)
        self.gate, self.ff_gate = Gate(hidden_size), Gate(hidden_size)

    def forward(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, MemoryTrace]:
        y, trace = self.memory(self.memory.slow_net(self.norm(x)), state, reset)
        x = self.gate(x, self.out(y).relu())
        return self.ff_gate(x, self.ff(self.ff_norm(x)).relu()), trace


_LAYER = (nn.LayerNorm, nn.Linear, nn.Linear, nn.LayerNorm, nn.Linear, nn.ReLU, nn.Linear)


def weights_of(*modules: Any, kinds: tuple[type[nn.Module], ...]) -> list[Any]:
    """List the modules' parameters, None for each that is missing; none at all if a module is of another kind
    or hooked.

    Reads them where `nn.Module` keeps them: its attributes take a good part of an actor's step to find.
    """
    weights: list[Any] = []
    if tuple(map(type, modules)) != kinds:
        return []
    for module in modules:
        if _is_hooked(module):
            return []
        if type(module) is nn.LayerNorm and module._parameters["bias"] is None:
            return []
        weights.extend(module._parameters.values())
    return weights


def _is_hooked(module: Any) -> bool:
    """Return whether somebody wants to hear of the module's calls or gradients."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)
