"""No memory: the baseline that every memory has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Core, State, check_not_empty
from .registry import register
from .short_conv import ShortConvolution, check_short_conv


@register("feedforward")
class Feedforward(Core):
    """No memory: the output is the input. The feedforward agent of Irie et al. 2021. State: ().

    With `short_conv` N the output is a causal convolution of the last N steps: the baseline for tasks that a
    short window solves. State: (the last inputs `[B, 1, N - 1, input_size]`,).

    Args:
        input_size: width of the input vectors, and of the output.
        short_conv: N, the number of steps of the episode, this one included, over which a causal convolution,
            followed by SiLU, mixes each feature; 0 for none.

    Raises:
        ValueError: for a short_conv out of range.
    """

    equation = "no memory: y = x"
    source = "Irie et al. 2021"

    def __init__(self, input_size: int, short_conv: int = 0) -> None:
        super().__init__(input_size, input_size)
        check_short_conv(short_conv)
        self.short_conv = ShortConvolution(input_size, short_conv) if short_conv else None

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        if self.short_conv is None:
            return ()
        weight = self.short_conv.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return (torch.zeros(self._state_shape(batch_size), dtype=dtype, device=device or weight.device),)

    def unroll(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        check_not_empty(x)
        if self.short_conv is None:
            return x, ()
        (last,) = state
        self._check(x, last, reset)
        # The state keeps its precision under autocast.
        y, last = self.short_conv(x.to(last.dtype), last.squeeze(1), reset)
        return y.to(x.dtype), (last.unsqueeze(1),)

    def _state_shape(self, batch_size: int) -> tuple[int, ...]:
        assert self.short_conv is not None
        return batch_size, 1, len(self.short_conv.weight) - 1, self.input_size

    def _check(self, x: Tensor, last: Tensor, reset: Tensor) -> None:
        """Raise ValueError unless state and reset have the batch size of x."""
        shape = self._state_shape(x.shape[1])
        if last.shape != shape:
            raise ValueError(f"feedforward: the state is {list(last.shape)}; give {list(shape)}")
        if reset.shape != x.shape[:2] or reset.dtype is not torch.bool:
            actual = f"{reset.dtype} {list(reset.shape)}"
            raise ValueError(f"feedforward: reset is {actual}; give torch.bool {list(x.shape[:2])}")
