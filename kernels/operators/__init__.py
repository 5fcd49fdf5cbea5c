"""Custom operators for rules that one kernel computes whole: shapes of fake tensors, gradients, autograd.

`backend` names the room whose `rules.py` computes: "triton" on GPUs, "native" on CPUs. Both have the same
functions, which fill outputs allocated here. A gradient that is None stands for zeros.
"""

from .delta import delta_rule, sum_rule
from .gated import gated_delta, gated_sum, momentum_delta
from .recurrent import delta_rnn, recurrent_delta

__all__ = [
    "delta_rnn",
    "delta_rule",
    "gated_delta",
    "gated_sum",
    "momentum_delta",
    "recurrent_delta",
    "sum_rule",
]
