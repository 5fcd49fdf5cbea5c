"""The base class of the LSTM and the GRU: one layer with PyTorch's parameters and initialisation."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from .base import Core, State


class RNNCore(Core):
    """A core of slow weights alone. State: `num_states` tensors `[B, 1, hidden]`.

    Parameters have the names, shapes, order of gates and initial distribution of PyTorch's layers, and load
    from their checkpoints.

    Args:
        input_size: width of the input vectors.
        hidden_size: width of the state and of the output.
        chrono: longest time scale, in steps, of the gate biases' chrono initialisation (Tallec & Ollivier
            2018); none: PyTorch's initialisation.

    Raises:
        ValueError: for a hidden_size below 1 or a chrono below 2.
    """

    num_gates: ClassVar[int]
    """Number of gates: the weights have `num_gates` * hidden rows."""
    num_states: ClassVar[int]
    """Number of state tensors."""
    forget_gate: ClassVar[int]
    """Index of the forget gate (GRU: the update gate) among the gates."""
    input_gate: ClassVar[int | None] = None
    """Index of the input gate; None if the forget gate determines it."""

    def __init__(self, input_size: int, hidden_size: int = 256, chrono: int | None = None) -> None:
        super().__init__(input_size, hidden_size)
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; it must be at least 1")
        if chrono is not None and chrono < 2:
            raise ValueError(f"chrono is {chrono}; it must be at least 2 steps")
        bound, rows = hidden_size**-0.5, self.num_gates * hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.empty(rows, input_size).uniform_(-bound, bound))
        self.weight_hh_l0 = nn.Parameter(torch.empty(rows, hidden_size).uniform_(-bound, bound))
        self.bias_ih_l0 = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh_l0 = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        if chrono is not None:
            self._chrono_init(chrono)

    @torch.no_grad()
    def _chrono_init(self, longest: int) -> None:
        """Draw the gate biases so that each unit's time scale lies between 2 and `longest` steps.

        Tallec & Ollivier 2018, "Can recurrent neural networks warp time?": chrono initialisation.
        """
        size = self.output_size
        bias = torch.empty(size).uniform_(1, max(1, longest - 1)).log()
        for gate, value in ((self.forget_gate, bias), (self.input_gate, -bias)):
            if gate is not None:
                self.bias_ih_l0[gate * size : (gate + 1) * size] = value
                self.bias_hh_l0[gate * size : (gate + 1) * size] = 0

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        weight = self.weight_hh_l0
        dtype = torch.promote_types(weight.dtype, torch.float32)
        shape, device = (batch_size, 1, self.output_size), device or weight.device
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(self.num_states))
