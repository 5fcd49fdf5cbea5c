"""The arithmetic of fast weights as pure functions; README.md says where to start."""

from .dispatch import BACKENDS, Fused, Rule
from .rules import backends, delta_rnn, delta_rule, lstm, recurrent_delta, sum_rule
from .shapes import Shapes

__all__ = [
    "BACKENDS",
    "Fused",
    "Rule",
    "Shapes",
    "backends",
    "delta_rnn",
    "delta_rule",
    "lstm",
    "recurrent_delta",
    "sum_rule",
]
