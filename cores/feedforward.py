"""No memory: the baseline that every memory has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Core, State, check_not_empty
from .registry import register


@register("feedforward")
class Feedforward(Core):
    """No memory: the heads read the features. State: empty. The feedforward agent of Irie et al. 2021.

    Args:
        input_size: width of the input vectors, and of the output.
    """

    equation = "no memory: y = x"
    source = "Irie et al. 2021"

    def __init__(self, input_size: int) -> None:
        super().__init__(input_size, input_size)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return ()

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        check_not_empty(x)
        return x, ()
