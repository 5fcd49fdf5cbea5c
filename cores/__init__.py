"""Recurrent cores: one file each, one interface, made by name. What each one is stands in README.md."""

from . import delta_net, delta_rnn, feedforward, gated_feedforward, linear_transformer, lstm, rdn
from .base import Core, State, Stats
from .registry import core_feature_size, core_name, core_names, make_core, register
from .shell import FastWeightCore, FastWeights, Passage, StatePart

__all__ = [
    "Core",
    "FastWeightCore",
    "FastWeights",
    "Passage",
    "State",
    "StatePart",
    "Stats",
    "core_feature_size",
    "core_name",
    "core_names",
    "delta_net",
    "delta_rnn",
    "feedforward",
    "gated_feedforward",
    "linear_transformer",
    "lstm",
    "make_core",
    "rdn",
    "register",
]
