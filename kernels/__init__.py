"""The arithmetic of fast weights as pure functions; README.md says where to start."""

from .private_cache import set_inductor_cache_dir

set_inductor_cache_dir()  # before what imports torch's compilers

from .dispatch import BACKENDS, Fused, Rule  # noqa: E402
from .rules import (  # noqa: E402
    attention,
    backends,
    delta_lstm,
    delta_rnn,
    delta_rule,
    deltaformer,
    gated_delta,
    gated_sum,
    generalised_delta,
    gru,
    lstm,
    momentum_delta,
    recurrent_delta,
    sum_rule,
)
from .shapes import Shapes  # noqa: E402

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
    "generalised_delta",
    "gru",
    "lstm",
    "momentum_delta",
    "recurrent_delta",
    "sum_rule",
]
