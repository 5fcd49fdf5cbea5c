"""A causal convolution over the last steps of an episode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_STEPS = 1024
"""Maximum number of steps of a convolution: each takes an operation of its own."""


class ShortConvolution(nn.Module):
    """Convolve each channel over this step and the last `size - 1` of its episode, then SiLU.

    As on queries, keys and values in Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule
    over Sequence Length". State: the last `size - 1` inputs `[B, size - 1, C]`, zero where the episode is
    younger.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        # begins as torch.nn.Conv1d does
        self.weight = nn.Parameter(torch.empty(size, channels).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, x: Tensor, last: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """`[T, B, C]`, the state before the first step and reset `[T, B]` -> y like x, the next state."""
        inputs, num_older = torch.cat((last.transpose(0, 1), x)), last.shape[1]
        episode = reset.cumsum(0)
        episodes = torch.cat((episode.new_zeros(num_older, reset.shape[1]), episode))
        y = torch.zeros_like(x)
        for age, weight in enumerate(self.weight.to(x.dtype)):
            past = slice(num_older - age, num_older - age + len(x))
            # torch.where, not a product with the mask: 0 · nan is nan.
            y = y + weight * _where((episodes[past] == episode), inputs[past])
        after = _where(episodes[len(x) :] == episode[-1], inputs[len(x) :])
        return F.silu(y), after.transpose(0, 1)


def check_short_conv(short_conv: int) -> None:
    """Raise ValueError for the option `short_conv`, a number of steps or 0 for none, out of range."""
    if not 0 <= short_conv <= MAX_STEPS:
        raise ValueError(f"short_conv is {short_conv}; give 1 to {MAX_STEPS} steps, or 0 for none")


def _where(mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask.unsqueeze(-1), x, x.new_zeros(()))
