"""LSTM, the baseline with slow weights only."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..kernels import lstm
from .base import State
from .registry import register
from .rnn import RNNCore


@register("lstm")
class LSTM(RNNCore):
    """One LSTM layer. State: (h, c), each `[B, 1, hidden]`.

    The parameters are those of `torch.nn.LSTM`; gates i, f, g, o. Hochreiter & Schmidhuber 1997 with the
    forget gate of Gers et al. 2000.
    """

    equation = "c = f c + i g; y = o tanh(c)"
    source = "Hochreiter, Schmidhuber 1997; Gers et al. 2000"
    num_gates, num_states = 4, 2
    forget_gate, input_gate = 1, 0

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        h, c = (part.squeeze(1) for part in state)
        gates = F.linear(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        # The state keeps its precision under autocast, and kernels keep out of it.
        y, h, c = lstm(gates.to(c.dtype), self.weight_hh_l0.to(c.dtype), h, c, reset)
        return y.to(x.dtype), (h.unsqueeze(1), c.unsqueeze(1))
