"""flash-linear-attention doing the job of our kernels, for `deltabeast bench kernels` where it is installed.

It knows no resets: spans are cut where episodes begin and laid one after the other, each with its own
initial state, which is how its users train on documents of unequal lengths. Cutting and copying are not
timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels import Rule
from ...kernels.rules import DELTA_RULE, SUM_RULE


class Route(NamedTuple):
    """One way to compute a rule: a function of inputs in its own layout."""

    name: str
    dtype: torch.dtype
    function: Callable[..., tuple[Tensor, Tensor]]
    """from q, k, v (and beta), initial state and bounds, in this order, to y and the final states"""


class Pieces(NamedTuple):
    """Where the N pieces of B rows of T steps lie when all rows are laid one after the other."""

    bounds: Tensor  # [N + 1] int64: the first step of each piece, and B T
    first: Tensor  # [B]: the piece that a row begins with
    last: Tensor  # [B]: the piece that it ends with
    fresh: Tensor  # [B] bool: the row begins with a reset


def routes(rule: Rule, device: torch.device) -> Iterator[Route]:
    """Its ways to compute a rule, none if it is not installed, has no such rule or the device is no GPU.

    Its chunk kernels are its fastest, in the bfloat16 that they ask for; the fused loop also takes float32.
    """
    if device.type != "cuda" or find_spec("fla") is None:
        return
    if rule is DELTA_RULE:
        from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule

        yield Route("fla chunk", torch.bfloat16, _call(chunk_delta_rule))
        yield Route("fla recurrent", torch.bfloat16, _call(fused_recurrent_delta_rule))
        yield Route("fla recurrent", torch.float32, _call(fused_recurrent_delta_rule))
    elif rule is SUM_RULE:
        from fla.ops.linear_attn import chunk_linear_attn, fused_recurrent_linear_attn

        yield Route("fla chunk", torch.bfloat16, _call(chunk_linear_attn, normalize=False))
        yield Route("fla recurrent", torch.bfloat16, _call(fused_recurrent_linear_attn, normalize=False))
        yield Route("fla recurrent", torch.float32, _call(fused_recurrent_linear_attn, normalize=False))


def _call(function: Callable[..., tuple[Tensor, Tensor]], **options: Any) -> Callable[..., Any]:
    def run(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        *sequences, state, bounds = inputs
        return function(
            *sequences, scale=1.0, initial_state=state, output_final_state=True, cu_seqlens=bounds, **options
        )

    return run


def cut(reset: Tensor) -> Pieces:
    """Cut `[T, B]` into the pieces between resets."""
    begins = reset.mT.clone()  # [B, T]
    begins[:, 0] = True
    first = begins.flatten().cumsum(0).view_as(begins) - 1
    starts = begins.flatten().nonzero().squeeze(-1)
    bounds = torch.cat((starts, starts.new_tensor([begins.numel()])))
    return Pieces(bounds, first[:, 0], first[:, -1], reset[0])


def pack(inputs: Sequence[Tensor], pieces: Pieces, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Lay out a rule's inputs, time-major with W last, as fla does: `[1, B T, H, ...]` and `[N, H, K, V]`."""
    *sequences, W = inputs
    state = W.new_zeros(len(pieces.bounds) - 1, *W.mT.shape[1:])
    state[pieces.first] = torch.where(pieces.fresh.view(-1, 1, 1, 1), torch.zeros_like(W.mT), W.mT)
    # Its states are float32, whatever the rest is.
    return *(x.transpose(0, 1).flatten(0, 1).unsqueeze(0).to(dtype) for x in sequences), state


def unpack(y: Tensor, states: Tensor, pieces: Pieces) -> tuple[Tensor, Tensor]:
    """Its y and final states as our y and last W."""
    return _time_major(y, pieces), states[pieces.last].mT


def unpack_gradients(gradients: Sequence[Tensor], pieces: Pieces) -> list[Tensor]:
    """Convert the gradients of what `pack` made to those of what it was made of."""
    *sequences, state = gradients
    dW = state[pieces.first].mT.masked_fill(pieces.fresh.view(-1, 1, 1, 1), 0)
    return [*(_time_major(x, pieces) for x in sequences), dW]


def _time_major(x: Tensor, pieces: Pieces) -> Tensor:
    return x.squeeze(0).unflatten(0, (len(pieces.first), -1)).transpose(0, 1)
