"""LSTM, the baseline with slow weights only."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import lstm
from ..kernels.native import dense
from ..kernels.native import lstm as native
from ..kernels.native.known import Kept
from .base import Core, State, Stats
from .registry import register


@register("lstm")
class LSTM(Core):
    """One LSTM layer. State: (h, c), each `[B, 1, hidden]`.

    Parameters have torch.nn.LSTM's names, shapes, gate order (i, f, g, o) and initial distribution, and load
    from its checkpoints. Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000.

    Args:
        input_size: width of the input vectors.
        hidden_size: width of the state and of the output.
    """

    equation = "c = f c + i g; y = o tanh(c)"
    source = "Hochreiter, Schmidhuber 1997; Gers et al. 2000"

    def __init__(self, input_size: int, hidden_size: int = 256) -> None:
        super().__init__(input_size, hidden_size)
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; it must be at least 1")
        bound = hidden_size**-0.5
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden_size, input_size).uniform_(-bound, bound))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden_size).uniform_(-bound, bound))
        self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden_size).uniform_(-bound, bound))

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        weight = self.weight_hh_l0
        dtype = torch.promote_types(weight.dtype, torch.float32)
        shape = (batch_size, 1, self.output_size)
        return tuple(torch.zeros(shape, dtype=dtype, device=device or weight.device) for _ in range(2))

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        return self._step_in_c(x, state, reset) or super().step(x, state, reset)

    def keeping_step(self, x: Tensor, state: State, reset: Tensor, kept: Kept) -> tuple[Tensor, State]:
        return self._step_in_c(x, state, reset, kept) or self.step(x, state, reset)

    def _step_in_c(
        self, x: Tensor, state: State, reset: Tensor, kept: Kept | None = None
    ) -> tuple[Tensor, State] | None:
        h, c = (part.squeeze(1) for part in state)
        taken = native.step(x, self._weights(), h, c, reset, kept)
        if taken is None:
            return None
        h, c = taken
        return h, (h.unsqueeze(1), c.unsqueeze(1))

    def _weights(self) -> list[Tensor]:
        """Both weights, both biases; as attributes they would take longer to find."""
        weights: Any = self._parameters
        return [weights[f"{kind}_{part}_l0"] for kind in ("weight", "bias") for part in ("ih", "hh")]

    def new_kept(self, steps: int, batch_size: int) -> Kept | None:
        return native.new_kept(steps, batch_size, self._weights())

    def known_unroll(self, x: Tensor, state: State, reset: Tensor, kept: Kept) -> tuple[Tensor, State, Stats]:
        if not kept.knows(x, self._weights()):
            return self.measured_unroll(x, state, reset)
        h, c = (part.squeeze(1) for part in state)
        y, h, c = native.known_lstm(kept, x, self._weights(), h, c, reset)
        return y, (h.unsqueeze(1), c.unsqueeze(1)), {}

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        h, c = (part.squeeze(1) for part in state)
        weights = (self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        gates = dense.linear(x, *weights) if dense.takes(x, weights) else F.linear(x, *weights)
        # The state keeps its precision under autocast, and kernels keep out of it.
        y, h, c = lstm(gates.to(c.dtype), self.weight_hh_l0.to(c.dtype), h, c, reset)
        return y, (h.unsqueeze(1), c.unsqueeze(1))
