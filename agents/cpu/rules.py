"""Which memories C can step, and what it must know of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from ...cores.attention import SoftmaxMemory
from ...cores.delta_net import DeltaMemory
from ...cores.delta_product import DeltaProductMemory
from ...cores.delta_rnn import DeltaRNNMemory
from ...cores.fast_weights import FastWeights
from ...cores.features import TEMPERATURE, Features
from ...cores.gated_delta_net import GatedDeltaMemory, MomentumDeltaMemory
from ...cores.gated_linear_attention import GatedSumMemory
from ...cores.generalised import Decay, HeadProjection
from ...cores.gtrxl import RelativeMemory
from ...cores.kda import GatedDelta2Memory, KDAMemory
from ...cores.linear import LinearMemory
from ...cores.linear_transformer import SumMemory
from ...cores.rdn import RecurrentDeltaMemory
from ...cores.rwkv7 import RWKV7Memory
from ...cores.short_conv import ShortConvolution
from ...kernels.native.backbone import Memory
from ...kernels.native.weight_transforms import cached_transform
from ...kernels.precision import without_autocast

_MODULES: Final = frozenset(
    {nn.Linear, nn.RMSNorm, Features, ShortConvolution, HeadProjection, Decay, type(None)}
)
"""Kinds of modules in a memory that C can step."""


class _Rule(NamedTuple):
    """What C must know of a memory's rule."""

    rule: str
    activations: tuple[str | None, ...]
    """Activation of each part that the slow net emits, "" for the identity; None if C lacks it."""
    weights: Sequence[Tensor | None] = ()
    """Weights of the rule, besides the slow net's; None where one is missing."""
    about: dict[str, Any] = {}  # noqa: RUF012
    """Other fields of `Memory`."""
    substitutes: dict[int, Tensor] = {}  # noqa: RUF012
    """By an index in `weights`, what C reads in place of that weight."""


class MemoryStep(NamedTuple):
    """How C computes a memory's step."""

    memory: Memory
    weights: list[Tensor | None]
    substitutes: dict[int, Tensor]
    """As in `_Rule`, by an index in `weights`."""


def memory_step(memory: FastWeights) -> MemoryStep | None:
    """Return how C computes a step of this very memory; None where it cannot."""
    describe = _RULES.get(type(memory))
    if describe is None or not _MODULES.issuperset(map(type, memory._modules.values())):
        return None
    rule = describe(memory)
    if rule is None or None in rule.activations:
        return None
    conv, norm, gate = memory.short_conv, memory.head_norm, memory.output_gate
    activations: tuple[Any, ...] = rule.activations
    weights: list[Tensor | None] = [None, None]
    around: dict[str, Any] = {}
    if conv is not None:
        weights[0] = conv.weight
        around = {"steps": len(conv.weight), "convolved": memory.convolved}
    if norm is not None:
        weights[1] = norm.weight
        around["head_eps"] = norm.eps
    if gate != "none":
        activations = (*activations, "")
        around["gate"] = gate
    described = Memory(rule.rule, activations, memory.emitted_sizes, **around, **rule.about)
    substitutes = {len(weights) + i: value for i, value in rule.substitutes.items()}
    return MemoryStep(described, [*weights, *rule.weights], substitutes)


def _feature_map(features: Features) -> str | None:
    if features.feature_map == "elu" and features.normalise == "sum":
        return "normalized_elu"
    alone = features.feature_map in ("softmax", "unit", "root2") and features.normalise == "none"
    return features.feature_map if alone else None


def _strength(memory: DeltaMemory) -> str | None:
    if memory._beta_bias:
        return None
    return "sigmoid" if memory.beta_max == 1 else "twice_sigmoid"


def _linear(memory: LinearMemory, rule: str, *rates: str | None, **about: Any) -> _Rule:
    """`rates`: activations of β and of the decay or momentum, as far as the rule has them."""
    features = _feature_map(memory.features)
    return _Rule(rule, (features, features, "", *rates), about=about)


def _gated_sum(memory: GatedSumMemory) -> _Rule | None:
    decays_by_head = memory.sizes[-1] == 1
    if not decays_by_head:
        return None
    return _linear(memory, "gated", "sigmoid_root", root_degree=memory.decay_temperature)


def _delta_rnn(memory: DeltaRNNMemory) -> _Rule | None:
    activations = "softmax", "softmax", "", "softmax", "", "sigmoid", "sigmoid"
    return None if memory.variant == "A" else _Rule("delta_rnn", activations)


def _recurrent_delta(memory: RecurrentDeltaMemory) -> _Rule:
    parameters: Any = memory._parameters
    weights = [parameters[name] for name in ("Rq", "Rk", "Rv", "rb")]
    return _Rule("recurrent_delta", ("", "", "", ""), weights)


def _of_decay(decay: Decay | None) -> list[Tensor | None]:
    return [None, None] if decay is None else [decay.A, decay.b]


def _kda(memory: KDAMemory) -> _Rule | None:
    strengths = ("sigmoid",) if type(memory) is KDAMemory else ("sigmoid", "sigmoid")
    about = {"kind": "kda" if type(memory) is KDAMemory else "gated_delta_2", "rank": memory.sizes[-1]}
    weights = [memory.to_decay.weight, *_of_decay(memory.decay)]
    rule = _Rule("generalised", ("unit", "unit", "", *strengths, ""), weights, about)
    return rule if memory.to_decay.bias is None else None


def _delta_product(memory: DeltaProductMemory) -> _Rule:
    strength = "sigmoid" if memory.beta_max == 1 else "twice_sigmoid"
    decay = () if memory.decay is None else ("",)
    about = {"kind": "delta_product", "rank": len(decay), "writes": memory.num_writes}
    weights = [None, *_of_decay(memory.decay)]
    return _Rule("generalised", ("unit", "unit", "", strength, *decay), weights, about)


def _rwkv7(memory: RWKV7Memory) -> _Rule:
    layers: list[HeadProjection] = [memory.to_decay, memory.to_rate]
    weights = [weight for layer in layers for weight in (layer.weight, layer.bias)]
    about = {"kind": "rwkv7", "rank": memory.sizes[-1], "writes": 2}
    return _Rule("generalised", ("",) * 5, [*weights, memory.xi, memory.alpha, memory.rho], about)


def _attention(memory: SoftmaxMemory) -> _Rule:
    about = {"window": memory.window, "normalise": memory.normalise, "root_degree": TEMPERATURE}
    gate = ("sigmoid_root",) if memory.gated else ()
    return _Rule("attention", ("", "", "", *gate), [None, None, None, memory.bias], about)


def _relative_attention(memory: RelativeMemory) -> _Rule | None:
    weights: list[Any] = [memory.content_bias, memory.to_ages.weight, memory.age_bias]
    size = memory.num_heads * memory.head_size
    right = memory.waves.shape[1:] == (size,) and memory.to_ages.weight.shape == (size, size)
    if not right or memory.to_ages.bias is not None or None in weights:
        return None
    waves = memory.waves
    how = "ages", waves.data_ptr(), waves.shape, None if waves.is_inference() else waves._version
    ages = cached_transform(memory.to_ages.weight, how, functools.partial(_ages, memory))
    return _attention(memory)._replace(weights=[*weights, None], substitutes={1: ages})


def _ages(memory: RelativeMemory) -> Tensor:
    """Return the keys of all ages, `[H, h, N]`."""
    ages: Tensor = without_autocast(torch.matmul)(memory.to_ages.weight.detach(), memory.waves.mT)
    return ages.unflatten(0, (memory.num_heads, memory.head_size))


_RULES: Final[dict[type[FastWeights], Callable[[Any], _Rule | None]]] = {
    SumMemory: lambda memory: _linear(memory, "delta"),
    DeltaMemory: lambda memory: _linear(memory, "delta", _strength(memory)),
    GatedDeltaMemory: lambda memory: _linear(
        memory, "gated", _strength(memory), "sigmoid_root", root_degree=memory.decay_temperature
    ),
    MomentumDeltaMemory: lambda memory: _linear(memory, "momentum", _strength(memory), "sigmoid"),
    GatedSumMemory: _gated_sum,
    DeltaRNNMemory: _delta_rnn,
    RecurrentDeltaMemory: _recurrent_delta,
    KDAMemory: _kda,
    GatedDelta2Memory: _kda,
    DeltaProductMemory: _delta_product,
    RWKV7Memory: _rwkv7,
    SoftmaxMemory: _attention,
    RelativeMemory: _relative_attention,
}
