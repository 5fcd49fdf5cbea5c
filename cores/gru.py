"""GRU: slow weights, the other baseline."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import gru
from ..kernels.native import dense
from ..kernels.native import gru as native
from .base import Core, State
from .registry import register


@register("gru")
class GRU(Core):
    """One GRU layer directly on the input, with the parameters of `torch.nn.GRU`. State: (h `[B, 1, N]`,).

    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", in PyTorch's form.

    Args:
        input_size: width of the input vectors.
        hidden_size: N, width of the state and of the output.
    """

    equation = "y = (1 - z) tanh(n + r U y) + z y"
    source = "Cho et al. 2014"

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__(input_size, hidden_size)
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; it must be at least 1")
        bound = hidden_size**-0.5
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * hidden_size, input_size).uniform_(-bound, bound))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias_ih_l0 = nn.Parameter(torch.empty(3 * hidden_size).uniform_(-bound, bound))
        self.bias_hh_l0 = nn.Parameter(torch.empty(3 * hidden_size).uniform_(-bound, bound))

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        weight = self.weight_hh_l0
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return (torch.zeros(batch_size, 1, self.output_size, dtype=dtype, device=device or weight.device),)

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        weights: Any = self._parameters  # as attributes they would take longer to find
        some = [weights[f"{kind}_{part}_l0"] for kind in ("weight", "bias") for part in ("ih", "hh")]
        h = native.step(x, some, state[0].squeeze(1), reset)
        return super().step(x, state, reset) if h is None else (h, (h.unsqueeze(1),))

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        weights = (self.weight_ih_l0, self.bias_ih_l0)
        gates = dense.linear(x, *weights) if dense.takes(x, weights) else F.linear(x, *weights)
        # The state keeps its precision under autocast, and kernels keep out of it.
        slow = (self.weight_hh_l0.to(h.dtype), self.bias_hh_l0.to(h.dtype))
        y, h = gru(gates.to(h.dtype), *slow, h.squeeze(1), reset)
        return y, (h.unsqueeze(1),)
