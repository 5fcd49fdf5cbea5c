"""Cores of fast-weight layers: a step in one call of C, and an unroll whose forward pass an actor made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...cores import FastWeightCore, MemoryTrace, State, Stats
from ...cores.fast_weights import FastWeights, measure
from ...cores.features import EPSILON
from ...cores.hybrid import Hybrid
from ...cores.layer import Gate, GRUGatedBlock, Layer
from ...cores.rdn import RecurrentDeltaMemory
from ...kernels.native import backbone as native
from ...kernels.native.acting import CoreSteps
from ...kernels.native.forward_cache import (
    ForwardCache,
    cached_linear,
    cached_normalized_linear,
    cached_residual_feedforward,
)
from ...kernels.native.recurrent_cache import cached_recurrent_delta
from .modules import is_hooked, weights_of
from .rules import MemoryStep, memory_step

_LAYER = (nn.LayerNorm, nn.Linear, nn.Linear, nn.LayerNorm, nn.Linear, nn.ReLU, nn.Linear)
_GATE = (nn.Linear, nn.Linear, nn.Linear)


def plan(core: FastWeightCore) -> native.Plan | None:
    """Prepare a core's steps in C; None if a module is not as made, or layers differ in what C has once."""
    weights = weights_of(core.input_proj, kinds=(nn.Linear,))
    if not weights:
        return None
    shells, memories, substitutes = set(), [], {}
    layers: Any = core.layers._modules.values()
    for layer in layers:
        description = _describe(layer)
        if description is None:
            return None
        shell, memory, own, gates = description
        shells.add(shell)
        memories.append(memory.memory)
        first = len(weights) + len(own)
        substitutes.update({first + i: value for i, value in memory.substitutes.items()})
        weights += [*own, *memory.weights, *[None] * (native.OF_MEMORY - len(memory.weights)), *gates]
    stacked = not isinstance(core, Hybrid)
    if len(shells) > 1 or (stacked and len({*memories}) > 1):
        return None
    heads, eps, ff_eps, gated = shells.pop()
    inputs = core.input_size + 2 * core.clock
    shape = native.Shape(inputs, core.output_size, len(weights[10]), heads, eps, EPSILON, core.clock, gated)
    return native.plan(shape, tuple(memories), weights, substitutes, stacked) if eps == ff_eps else None


def _describe(layer: nn.Module) -> tuple[Any, MemoryStep, list[Any], list[Any]] | None:
    """Return what C has once for all layers, a layer's memory, the parameters around it and those of its
    gates (None for each that it lacks); None where C cannot step it."""
    if type(layer) not in (Layer, GRUGatedBlock) or is_hooked(layer):
        return None
    modules: Any = layer._modules
    gated = type(layer) is GRUGatedBlock
    names = ("norm", "memory", "out", "ff_norm", "ff", *(("gate", "ff_gate") if gated else ()))
    if {*modules} != {*names}:
        return None
    norm, memory, out, ff_norm, ff, *both = (modules[name] for name in names)
    gates: list[Any] = [weight for gate in both for weight in _weights_of_gate(gate)]
    if gated and len(gates) != native.OF_GATES:
        return None
    gates = gates or [None] * native.OF_GATES
    inside = memory, ff, *memory._modules.values()
    own = norm, memory._modules["slow_net"], out, ff_norm, *ff._modules.values()
    weights, native_memory = weights_of(*own, kinds=_LAYER), memory_step(memory)
    if not weights or native_memory is None or any(map(is_hooked, inside)):
        return None
    return (memory.num_heads, norm.eps, ff_norm.eps, gated), native_memory, weights, gates


def _weights_of_gate(gate: nn.Module) -> list[Any]:
    """Return the four weights of a gate; none where C cannot compute it."""
    if type(gate) is not Gate or is_hooked(gate):
        return []
    linear = (gate._modules.get(name) for name in ("from_y", "from_x", "from_reset"))
    weights, bias = weights_of(*linear, kinds=_GATE), gate._parameters["bias"]
    biases = [weight for weight in weights[1::2] if weight is not None]
    return [] if biases or bias is None else [*weights[::2], bias]


def new_cache(core: FastWeightCore, steps: int, rows: int) -> ForwardCache | None:
    core_plan = plan(core)
    return None if core_plan is None else native.new_cache(core_plan, steps, rows)


def step(
    core: FastWeightCore, x: Tensor, state: State, reset: Tensor, cache: ForwardCache | None
) -> tuple[Tensor, State] | None:
    """Like `core.step`, written into the cache if there is one; None where C cannot."""
    core_plan = plan(core) if cache is None else cache.prepared[0]
    return None if core_plan is None else native.step(core_plan, x, state, reset, cache)


def steps(core: FastWeightCore, state: State, cache: ForwardCache) -> CoreSteps | None:
    """Return the steps of an unroll from `state` on, for C to make an agent's whole steps; None if not."""
    return native.steps(cache.prepared[0], state, cache)


def unroll(
    core: FastWeightCore, x: Tensor, state: State, reset: Tensor, cache: ForwardCache
) -> tuple[Tensor, State, Stats] | None:
    """Like `core.unroll_with_stats`, from what an actor's steps computed; None where those are others."""
    core_plan = plan(core)
    if core_plan is None or not cache.matches(x, core_plan.weights):
        return None
    if torch.is_grad_enabled():  # tensors made in inference_mode could not be differentiated
        state = tuple(part.clone() if part.is_inference() else part for part in state)
    weights: list[Any] = list(core_plan.weights)
    (stream, middle, hidden), rest = cache.tensors[:3], cache.tensors[3:]
    projected, inside = rest[: len(core_plan.memories)], rest[len(core_plan.memories) :]
    x, state, time = core.with_time(x, state, reset)
    x, traces = cached_linear(stream[0], x, *weights[:2]), []
    for i, (memory, before) in enumerate(zip(core.memories(), core.split(state), strict=True)):
        layer_weights, eps = weights[2 + native.OF_LAYER * i :], core_plan.shape.eps
        own = [each[i] for each in inside] if native.stores_rule(core_plan.memories[i]) else []
        heads = cached_normalized_linear(projected[i], x, eps, *layer_weights[:4])
        y, trace = _memory(memory, heads, before, reset, own, tuple(cache.after[i]))
        values = middle[i], hidden[i], stream[i + 1]
        x = cached_residual_feedforward(values, x, y, eps, *layer_weights[4:12])
        traces.append(trace)
    after = core.join([trace.state for trace in traces])
    return x, (*after, *time), measure(core.memories(), traces)


def _memory(
    memory: FastWeights, projected: Tensor, state: State, reset: Tensor, values: list[Tensor], after: State
) -> tuple[Tensor, MemoryTrace]:
    """Like `memory(projected, state, reset)`; RDN's rule is not computed again, others cost less."""
    if not values:
        trace: tuple[Tensor, MemoryTrace] = memory(projected, state, reset)
        return trace
    assert type(memory) is RecurrentDeltaMemory
    parts = torch.split_with_sizes(projected.unflatten(-1, (memory.num_heads, -1)), memory.sizes, -1)
    q, k, v, beta = parts
    slow = memory.Rq, memory.Rk, memory.Rv, memory.rb
    y, W = cached_recurrent_delta(values, after[0], reset, q, k, v, beta.squeeze(-1), *slow, *state)
    return y.flatten(-2), MemoryTrace(parts, state, (W, y[-1]), y, reset)
