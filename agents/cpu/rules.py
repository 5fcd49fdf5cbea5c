"""Which memories C can step, and what it must know of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from ...cores.delta_net import DeltaMemory
from ...cores.delta_product import DeltaProductMemory
from ...cores.delta_rnn import DeltaRNNMemory
from ...cores.fast_weights import FastWeights
from ...cores.features import Features
from ...cores.gated_delta_net import GatedDeltaMemory, MomentumDeltaMemory
from ...cores.gated_linear_attention import GatedSumMemory
from ...cores.generalised import Decay, HeadProjection
from ...cores.kda import GatedDelta2Memory, KDAMemory
from ...cores.linear import LinearMemory
from ...cores.linear_transformer import SumMemory
from ...cores.rdn import RecurrentDeltaMemory
from ...cores.rwkv7 import RWKV7Memory
from ...cores.short_conv import ShortConvolution
from ...kernels.native.backbone import Memory

_MODULES: Final = frozenset(
    {nn.Linear, nn.RMSNorm, Features, ShortConvolution, HeadProjection, Decay, type(None)}
)
"""of which a memory is made that C can step"""


class _Rule(NamedTuple):
    """A memory's rule, and its weights other than the slow net's, None where one is missing."""

    rule: str
    maps: tuple[str | None, ...]
    """None where C has not this one"""
    slow: Sequence[Tensor | None] = ()
    about: dict[str, Any] = {}  # noqa: RUF012  # what else `Memory` has of it


def step_memory(memory: FastWeights) -> tuple[Memory, list[Tensor | None]] | None:
    """Return how C computes a step of this very memory, and its weights; None where it cannot."""
    describe = _RULES.get(type(memory))
    if describe is None or not _MODULES.issuperset(map(type, memory._modules.values())):
        return None
    rule = describe(memory)
    if rule is None or None in rule.maps:
        return None
    conv, norm, gate = memory.short_conv, memory.head_norm, memory.output_gate
    around: list[Tensor | None] = [None, None]
    feeding: dict[str, Any] = {}
    if conv is not None:
        around[0] = conv.weight
        feeding = {"steps": len(conv.weight), "convolved": memory.convolved}
    if norm is not None:
        around[1] = norm.weight
        feeding["head_eps"] = norm.eps
    if gate != "none":
        rule, feeding["gate"] = rule._replace(maps=(*rule.maps, "")), gate
    maps: tuple[Any, ...] = rule.maps
    return Memory(rule.rule, maps, memory.emitted_sizes, **feeding, **rule.about), [*around, *rule.slow]


def _feature_map(features: Features) -> str | None:
    if features.feature_map == "elu" and features.normalise == "sum":
        return "normalized_elu"
    alone = features.feature_map in ("softmax", "unit", "root2") and features.normalise == "none"
    return features.feature_map if alone else None


def _strength(memory: DeltaMemory) -> str | None:
    if memory._beta_bias:
        return None
    return "sigmoid" if memory.beta_max == 1 else "twice_sigmoid"


def _linear(memory: LinearMemory, rule: str, *gates: str | None, **about: Any) -> _Rule:
    features = _feature_map(memory.features)
    return _Rule(rule, (features, features, "", *gates), about=about)


def _gated_sum(memory: GatedSumMemory) -> _Rule | None:
    decays_by_head = memory.sizes[-1] == 1
    return _linear(memory, "gated", "slow", degree=memory.decay_temperature) if decays_by_head else None


def _delta_rnn(memory: DeltaRNNMemory) -> _Rule | None:
    maps = "softmax", "softmax", "", "softmax", "", "sigmoid", "sigmoid"
    return None if memory.variant == "A" else _Rule("delta_rnn", maps)


def _recurrent_delta(memory: RecurrentDeltaMemory) -> _Rule:
    slow: Any = memory._parameters
    return _Rule("recurrent_delta", ("", "", "", ""), (slow["Rq"], slow["Rk"], slow["Rv"], slow["rb"]))


def _of_decay(decay: Decay | None) -> list[Tensor | None]:
    return [None, None] if decay is None else [decay.A, decay.b]


def _kda(memory: KDAMemory) -> _Rule:
    gates = ("sigmoid",) if type(memory) is KDAMemory else ("sigmoid", "sigmoid")
    about = {"kind": "kda" if type(memory) is KDAMemory else "gated_delta_2", "rank": memory.sizes[-1]}
    slow = [memory.to_decay.weight, *_of_decay(memory.decay)]
    return _Rule("generalised", ("unit", "unit", "", *gates, ""), slow, about)


def _delta_product(memory: DeltaProductMemory) -> _Rule:
    maps = "unit", "unit", "", "sigmoid" if memory.beta_max == 1 else "twice_sigmoid"
    gate = () if memory.decay is None else ("",)
    about = {"kind": "delta_product", "rank": len(gate), "writes": memory.num_writes}
    return _Rule("generalised", (*maps, *gate), [None, *_of_decay(memory.decay)], about)


def _rwkv7(memory: RWKV7Memory) -> _Rule:
    layers: list[HeadProjection] = [memory.to_decay, memory.to_rate]
    slow = [weight for layer in layers for weight in (layer.weight, layer.bias)]
    about = {"kind": "rwkv7", "rank": memory.sizes[-1], "writes": 2}
    return _Rule("generalised", ("",) * 5, [*slow, memory.xi, memory.alpha, memory.rho], about)


_RULES: Final[dict[type[FastWeights], Callable[[Any], _Rule | None]]] = {
    SumMemory: lambda memory: _linear(memory, "delta"),
    DeltaMemory: lambda memory: _linear(memory, "delta", _strength(memory)),
    GatedDeltaMemory: lambda memory: _linear(
        memory, "gated", _strength(memory), "slow", degree=memory.decay_temperature
    ),
    MomentumDeltaMemory: lambda memory: _linear(memory, "momentum", _strength(memory), "sigmoid"),
    GatedSumMemory: _gated_sum,
    DeltaRNNMemory: _delta_rnn,
    RecurrentDeltaMemory: _recurrent_delta,
    KDAMemory: _kda,
    GatedDelta2Memory: _kda,
    DeltaProductMemory: _delta_product,
    RWKV7Memory: _rwkv7,
}
