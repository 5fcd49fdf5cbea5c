"""What the LSTM and the GRU share: one layer with PyTorch's parameters, whose state is vectors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.native import dense
from .base import Core, State


class GatedLayer(Core):
    """A core of slow weights alone. State: as many vectors as the class says, each `[B, 1, hidden]`.

    Parameters have the names, shapes, order of gates and initial distribution of PyTorch's layers, and load
    from their checkpoints.
    """

    gates: ClassVar[int]
    """rows of the weights, in sizes of the state"""
    states: ClassVar[int]
    keeps: ClassVar[int]
    """the gate that keeps what is stored where it is open, by its place"""
    writes: ClassVar[int | None] = None
    """the gate that lets in what is new, where it is another"""

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
        for gate, value in ((self.keeps, bias), (self.writes, -bias)):
            if gate is not None:
                self.bias_ih_l0[gate * size : (gate + 1) * size] = value
                self.bias_hh_l0[gate * size : (gate + 1) * size] = 0

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        weight = self.weight_hh_l0
        dtype = torch.promote_types(weight.dtype, torch.float32)
        shape, device = (batch_size, 1, self.output_size), device or weight.device
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(self.states))

    def _weights(self) -> list[Tensor]:
        """Both weights, both biases; as attributes they would take longer to find."""
        weights: Any = self._parameters
        return [weights[f"{kind}_{part}_l0"] for kind in ("weight", "bias") for part in ("ih", "hh")]


def emitted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what a linear layer emits for x `[T, B, inputs]`, computed in C where that is faster."""
    return dense.linear(x, weight, bias) if dense.takes(x, (weight, bias)) else F.linear(x, weight, bias)
