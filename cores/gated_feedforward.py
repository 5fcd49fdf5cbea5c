"""A highway layer with the LSTM baseline's size and none of its memory."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import Core, State, check_not_empty
from .registry import register


@register("gated_feedforward")
class GatedFeedforward(Core):
    """One highway layer and no memory.

    `y = g ∘ relu(W_h x + b_h) + (1 - g) ∘ (W_c x + b_c)`, `g = sigmoid(W_g x + b_g)`. State: empty.

    A reconstruction of the gated baseline of Irie et al. 2021, table 8: neither equations nor code of it are
    published. It is known to have a stem of 320 features and one highway layer of 256 units. The published
    1.7 M parameters of the agent need a fourth map, the output gate.

    Args:
        input_size: width of the input vectors.
        hidden_size: width of the output.
        output_gate: whether to multiply y by the sigmoid of a fourth map of the input.
    """

    equation = "no memory: y = g a(x) + (1 - g) b(x)"
    source = "Irie et al. 2021, table 8"

    feature_size: ClassVar[int] = 320

    def __init__(self, input_size: int, hidden_size: int = 256, output_gate: bool = False) -> None:
        super().__init__(input_size, hidden_size)
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; it must be at least 1")
        self.gate = nn.Linear(input_size, hidden_size)
        self.candidate = nn.Linear(input_size, hidden_size)
        self.carry = nn.Linear(input_size, hidden_size)
        self.output_gate = nn.Linear(input_size, hidden_size) if output_gate else None

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return ()

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        check_not_empty(x)
        y = torch.lerp(self.carry(x), self.candidate(x).relu(), self.gate(x).sigmoid())
        if self.output_gate is not None:
            y = y * self.output_gate(x).sigmoid()
        return y, ()
