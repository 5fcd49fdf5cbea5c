"""The arithmetic of fast weights as pure functions. The equations are in README.md."""

from .dispatch import BACKENDS, backends, delta_rnn, delta_rule, lstm, recurrent_delta, sum_rule

__all__ = ["BACKENDS", "backends", "delta_rnn", "delta_rule", "lstm", "recurrent_delta", "sum_rule"]
