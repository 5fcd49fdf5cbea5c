"""Which memories C can step, and what it must know of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...cores.delta_net import DeltaMemory
from ...cores.delta_rnn import DeltaRNNMemory
from ...cores.fast_weights import FastWeights
from ...cores.features import Features
from ...cores.gated_delta_net import GatedDeltaMemory, MomentumDeltaMemory
from ...cores.gated_linear_attention import GatedSumMemory
from ...cores.linear import LinearMemory
from ...cores.linear_transformer import SumMemory
from ...cores.rdn import RecurrentDeltaMemory
from ...kernels.native.backbone import StepRule


def step_rule(memory: FastWeights) -> StepRule | None:
    """Return how C computes a step of this very memory; None where it cannot."""
    if memory.short_conv is not None or memory.head_norm is not None or memory.output_gate != "none":
        return None
    describe = _RULES.get(type(memory))
    return describe(memory) if describe else None


def _feature_map(features: Features) -> str | None:
    if features.feature_map == "elu" and features.normalise == "sum":
        return "normalized_elu"
    alone = features.feature_map in ("softmax", "unit", "root2") and features.normalise == "none"
    return features.feature_map if alone else None


def _strength(memory: DeltaMemory) -> str | None:
    if memory._beta_bias:
        return None
    return "sigmoid" if memory.beta_max == 1 else "twice_sigmoid"


def _linear(memory: LinearMemory, rule: str, *gates: str | None, degree: float = 1.0) -> StepRule | None:
    """Describe a rule of q, k, v and these gates; None if C has not all of the maps."""
    features = _feature_map(memory.features)
    maps = features, features, "", *gates
    found = tuple(each for each in maps if each is not None)
    return StepRule(rule, found, degree=degree) if len(found) == len(maps) else None


def _gated_sum(memory: GatedSumMemory) -> StepRule | None:
    decays_by_head = memory.sizes[-1] == 1
    return _linear(memory, "gated", "slow", degree=memory.decay_temperature) if decays_by_head else None


def _delta_rnn(memory: DeltaRNNMemory) -> StepRule | None:
    maps = "softmax", "softmax", "", "softmax", "", "sigmoid", "sigmoid"
    return None if memory.variant == "A" else StepRule("delta_rnn", maps)


def _recurrent_delta(memory: RecurrentDeltaMemory) -> StepRule:
    slow: Any = memory._parameters
    return StepRule("recurrent_delta", ("", "", "", ""), (slow["Rq"], slow["Rk"], slow["Rv"], slow["rb"]))


_RULES: Final[dict[type[FastWeights], Callable[[Any], StepRule | None]]] = {
    SumMemory: lambda memory: _linear(memory, "delta"),
    DeltaMemory: lambda memory: _linear(memory, "delta", _strength(memory)),
    GatedDeltaMemory: lambda memory: _linear(
        memory, "gated", _strength(memory), "slow", degree=memory.decay_temperature
    ),
    MomentumDeltaMemory: lambda memory: _linear(memory, "momentum", _strength(memory), "sigmoid"),
    GatedSumMemory: _gated_sum,
    DeltaRNNMemory: _delta_rnn,
    RecurrentDeltaMemory: _recurrent_delta,
}
