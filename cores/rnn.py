"""What the LSTM and the GRU share: one layer with PyTorch's parameters, whose state is vectors."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from .base import Core, State


class RNNCore(Core):
    """A core of slow weights alone. State: as many vectors as the class says, each `[B, 1, hidden]`.

    Parameters have the names, shapes, order of gates and initial distribution of PyTorch's layers, and load
    from their checkpoints.

    Args:
        input_size: width of the input vectors.
        hidden_size: width of the state and of the output.
        chrono: steps over which something is to be remembered; the gates' biases begin such that it is
            (Tallec & Ollivier 2018). none: as in PyTorch.
    """

    gates: ClassVar[int]
    """rows of the weights, in sizes of the state"""
    states: ClassVar[int]
    forget_gate: ClassVar[int]
    """its place among the gates"""
    input_gate: ClassVar[int | None] = None
    """its place, where it is another gate"""

    def __init__(self, input_size: int, hidden_size: int = 256, chrono: int | None = None) -> None:
        super().__init__(input_size, hidden_size)
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; it must be at least 1")
        if chrono is not None and chrono < 2:
            raise ValueError(f"chrono is {chrono}; it must be at least 2 steps")
        bound, rows = hidden_size**-0.5, self.gates * hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh_l0 = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih_l0 = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh_l0 = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        if chrono is not None:
            self._keep_up_to(chrono)

    @torch.no_grad()
    def _keep_up_to(self, steps: int) -> None:
        """Set the biases so that units begin by forgetting within 2 to `steps` steps, each in its own time.

        Tallec & Ollivier 2018, "Can recurrent neural networks warp time?": chrono initialisation.
        """
        size = self.output_size
        bias = torch.empty(size).uniform_(1, max(1, steps - 1)).log()
        for gate, value in ((self.forget_gate, bias), (self.input_gate, -bias)):
            if gate is not None:
                self.bias_ih_l0[gate * size : (gate + 1) * size] = value
                self.bias_hh_l0[gate * size : (gate + 1) * size] = 0

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        weight = self.weight_hh_l0
        dtype = torch.promote_types(weight.dtype, torch.float32)
        shape, device = (batch_size, 1, self.output_size), device or weight.device
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(self.states))
