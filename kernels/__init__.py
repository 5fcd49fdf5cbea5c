"""The arithmetic of fast weights as pure functions; README.md says where to start."""

from .dispatch import BACKENDS, Fused, Rule
from .rules import (
    attention,
    backends,
    delta_lstm,
    delta_rnn,
    delta_rule,
    deltaformer,
    gated_delta,
    gated_sum,
    gru,
    lstm,
    momentum_delta,
    recurrent_delta,
    sum_rule,
)
from .shapes import Shapes

__all__ = [
    "BACKENDS",
    "Fused",
    "Rule",
    "Shapes",
    "attention",
    "backends",
    "delta_lstm",
    "delta_rnn",
    "delta_rule",
    "deltaformer",
    "gated_delta",
    "gated_sum",
    "gru",
    "lstm",
    "momentum_delta",
    "recurrent_delta",
    "sum_rule",
]
