"""Recurrent cores: one file each, one interface, made by name. README.md describes each of them."""

from . import (
    attention,
    delta_delta_net,
    delta_lstm,
    delta_mlp,
    delta_net,
    delta_rnn,
    feedforward,
    gated_delta_net,
    gated_feedforward,
    gated_linear_attention,
    gru,
    gtrxl,
    hybrid,
    linear_transformer,
    lstm,
    rdn,
)
from .backbone import FastWeightCore
from .base import Core, State, Stats
from .fast_weights import FastWeights, MemoryTrace, StatePart
from .registry import core_feature_size, core_name, core_names, make_core, register
from .truncated import unroll_truncated

__all__ = [
    "Core",
    "FastWeightCore",
    "FastWeights",
    "MemoryTrace",
    "State",
    "StatePart",
    "Stats",
    "attention",
    "core_feature_size",
    "core_name",
    "core_names",
    "delta_delta_net",
    "delta_lstm",
    "delta_mlp",
    "delta_net",
    "delta_rnn",
    "feedforward",
    "gated_delta_net",
    "gated_feedforward",
    "gated_linear_attention",
    "gru",
    "gtrxl",
    "hybrid",
    "linear_transformer",
    "lstm",
    "make_core",
    "rdn",
    "register",
    "unroll_truncated",
]
