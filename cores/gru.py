"""GRU: slow weights, the other baseline."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..kernels import gru
from .base import State
from .registry import register
from .rnn import RNNCore


@register("gru")
class GRU(RNNCore):
    """One GRU layer. State: (h `[B, 1, hidden]`,).

    The parameters are those of `torch.nn.GRU`; gates r, z, n. Cho et al. 2014, "Learning Phrase
    Representations using RNN Encoder-Decoder", in PyTorch's form.
    """

    equation = "y = (1 - z) tanh(n + r U y) + z y"
    source = "Cho et al. 2014"
    num_gates, num_states = 3, 1
    forget_gate = 1

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        gates = F.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        # The state keeps its precision under autocast, and kernels keep out of it.
        slow = (self.weight_hh_l0.to(h.dtype), self.bias_hh_l0.to(h.dtype))
        y, h = gru(gates.to(h.dtype), *slow, h.squeeze(1), reset)
        return y.to(x.dtype), (h.unsqueeze(1),)
