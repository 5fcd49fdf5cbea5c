"""LSTM, the baseline with slow weights only."""

from __future__ import annotations

from torch import Tensor

from ..kernels import lstm
from ..kernels.native import lstm as native
from ..kernels.native.acting import CoreSteps
from ..kernels.native.known import Kept
from .base import State, Stats
from .gated_layer import GatedLayer, emitted
from .registry import register


@register("lstm")
class LSTM(GatedLayer):
    """One LSTM layer. State: (h, c), each `[B, 1, hidden]`.

    The parameters are those of `torch.nn.LSTM`; gates i, f, g, o. Hochreiter & Schmidhuber 1997 with the
    forget gate of Gers et al. 2000.

    Args:
        input_size: width of the input vectors.
        hidden_size: width of the state and of the output.
        chrono: steps over which something is to be remembered; the gates' biases begin such that it is
            (Tallec & Ollivier 2018). none: as in PyTorch.
    """

    equation = "c = f c + i g; y = o tanh(c)"
    source = "Hochreiter, Schmidhuber 1997; Gers et al. 2000"
    gates, states = 4, 2
    keeps, writes = 1, 0

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

    def new_kept(self, steps: int, batch_size: int) -> Kept | None:
        return native.new_kept(steps, batch_size, self._weights())

    def steps_in_c(self, state: State, kept: Kept) -> CoreSteps | None:
        h, c = (part.squeeze(1) for part in state)
        return native.steps(self._weights(), h, c, kept)

    def known_unroll(self, x: Tensor, state: State, reset: Tensor, kept: Kept) -> tuple[Tensor, State, Stats]:
        if not kept.knows(x, self._weights()):
            return self.measured_unroll(x, state, reset)
        h, c = (part.squeeze(1) for part in state)
        y, h, c = native.known_lstm(kept, x, self._weights(), h, c, reset)
        return y, (h.unsqueeze(1), c.unsqueeze(1)), {}

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        h, c = (part.squeeze(1) for part in state)
        gates = emitted(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        # The state keeps its precision under autocast, and kernels keep out of it.
        y, h, c = lstm(gates.to(c.dtype), self.weight_hh_l0.to(c.dtype), h, c, reset)
        return y.to(x.dtype), (h.unsqueeze(1), c.unsqueeze(1))
