"""flash-linear-attention doing the job of our kernels, for `deltabeast bench kernels` where it is installed.

It knows no resets: spans are cut where episodes begin and laid one after the other, each with its own
initial state, which is how its users train on documents of unequal lengths. Cutting and copying are not
timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels import Rule
from ...kernels.rules import DELTA_RULE, GATED_DELTA, SUM_RULE
from .memories import DELTA_PRODUCT, GATED_DELTA_NET_2, KDA, RWKV7

Arguments = Mapping[str, Any]


class Operation(NamedTuple):
    """A function of `fla.ops`, and what it calls a rule's inputs."""

    name: str
    module: str
    function: str
    dtypes: tuple[torch.dtype, ...]
    arguments: Callable[..., Arguments]
    """from the rule's inputs but W, laid out by `pack`, to arguments by name"""


class Route(NamedTuple):
    """One way to compute a rule: a function of inputs in its own layout."""

    name: str
    dtype: torch.dtype
    function: Callable[..., tuple[Tensor, Tensor]]
    """from the rule's inputs, W the initial states, and bounds, in this order, to y and the final states"""


class Pieces(NamedTuple):
    """Where the N pieces of B rows of T steps lie when all rows are laid one after the other."""

    bounds: Tensor  # [N + 1] int64: the first step of each piece, and B T
    first: Tensor  # [B]: the piece that a row begins with
    last: Tensor  # [B]: the piece that it ends with
    fresh: Tensor  # [B] bool: the row begins with a reset


def _sum_rule(q: Tensor, k: Tensor, v: Tensor) -> Arguments:
    return {"q": q, "k": k, "v": v, "normalize": False}


def _delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Arguments:
    return {"q": q, "k": k, "v": v, "beta": beta}


def _gated_delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Arguments:
    return {"q": q, "k": k, "v": v, "beta": beta, "g": decay.log()}


def _kda(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Arguments:
    return {"q": q, "k": k, "v": v, "beta": beta, "g": g}


def _gated_delta_net_2(q: Tensor, k: Tensor, v: Tensor, b: Tensor, w: Tensor, g: Tensor) -> Arguments:
    return {"q": q, "k": k, "v": v, "b": b, "w": w, "g": g}


def _delta_product(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Arguments:
    writes = k.shape[1] // q.shape[1]
    return {"q": q, "k": k, "v": v, "beta": beta, "g": None, "num_householder": writes}


def _rwkv7(r: Tensor, k: Tensor, v: Tensor, removal: Tensor, a: Tensor, g: Tensor) -> Arguments:
    """Its state is `W (diag(exp w) + a bᵀ) + v kᵀ`, transposed."""
    return {"r": r, "w": g, "k": k, "v": v, "a": -removal, "b": a * removal}


_BFLOAT16 = (torch.bfloat16,)
_BOTH = (torch.bfloat16, torch.float32)

OPERATIONS: Mapping[Rule, tuple[Operation, ...]] = {
    SUM_RULE: (
        Operation("chunk", "linear_attn", "chunk_linear_attn", _BFLOAT16, _sum_rule),
        Operation("recurrent", "linear_attn", "fused_recurrent_linear_attn", _BOTH, _sum_rule),
    ),
    DELTA_RULE: (
        Operation("chunk", "delta_rule", "chunk_delta_rule", _BFLOAT16, _delta_rule),
        Operation("recurrent", "delta_rule", "fused_recurrent_delta_rule", _BOTH, _delta_rule),
    ),
    GATED_DELTA: (Operation("chunk", "gated_delta_rule", "chunk_gated_delta_rule", _BFLOAT16, _gated_delta),),
    KDA: (Operation("chunk", "kda", "chunk_kda", _BFLOAT16, _kda),),
    GATED_DELTA_NET_2: (Operation("chunk", "gdn2", "chunk_gdn2", _BFLOAT16, _gated_delta_net_2),),
    DELTA_PRODUCT: (
        Operation("chunk", "gated_delta_product", "chunk_gated_delta_product", _BFLOAT16, _delta_product),
    ),
    RWKV7: (Operation("chunk", "rwkv7", "chunk_rwkv7", _BFLOAT16, _rwkv7),),
}
"""Its chunk kernels are its fastest, in the bfloat16 that they ask for. Recurrent loops also take float32;
those that are left out have no backward pass (fla 0.6)."""

_RATES = ("decay", "g")
"""stay float32: near 1, and so near 0 in their logarithm's sum over steps, bfloat16 has two digits"""


def routes(rule: Rule, device: torch.device) -> Iterator[Route]:
    """Its ways to compute a rule, none if it is not installed, has no such rule or the device is no GPU."""
    if device.type != "cuda" or find_spec("fla") is None:
        return
    for operation in OPERATIONS.get(rule, ()):
        try:
            function = getattr(import_module(f"fla.ops.{operation.module}"), operation.function)
        except (ImportError, AttributeError):  # a release that lacks it
            continue
        for dtype in operation.dtypes:
            yield Route(f"fla {operation.name}", dtype, _call(function, operation.arguments))


def _call(
    function: Callable[..., tuple[Tensor, Tensor]], arguments: Callable[..., Arguments]
) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        *sequences, state, bounds = inputs
        return function(
            **arguments(*sequences),
            scale=1.0,
            initial_state=state,
            output_final_state=True,
            cu_seqlens=bounds,
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


def pack(rule: Rule, inputs: Sequence[Tensor], pieces: Pieces, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Lay out a rule's inputs, time-major with W last, as fla does: `[1, B T, H, ...]` and `[N, H, K, V]`.

    The n writes of a step follow each other: `[1, B T n, H, ...]`.
    """
    *sequences, W = inputs
    state = W.new_zeros(len(pieces.bounds) - 1, *W.mT.shape[1:])
    state[pieces.first] = torch.where(pieces.fresh.view(-1, 1, 1, 1), torch.zeros_like(W.mT), W.mT)
    laid = []
    for name, dimensions, x in zip(rule.shapes.names, rule.shapes.dimensions, sequences, strict=False):
        by_row = x.transpose(0, 1)
        x = by_row.transpose(2, 3).flatten(0, 2) if "n" in dimensions else by_row.flatten(0, 1)
        laid.append(x.unsqueeze(0).to(torch.promote_types(dtype, torch.float32) if name in _RATES else dtype))
    return *laid, state  # its states are float32, whatever the rest is


def unpack(y: Tensor, states: Tensor, pieces: Pieces) -> tuple[Tensor, Tensor]:
    """Its y and final states as our y and last W."""
    return _time_major(y, pieces), states[pieces.last].mT


def unpack_gradients(rule: Rule, gradients: Sequence[Tensor], pieces: Pieces) -> list[Tensor]:
    """Convert the gradients of what `pack` made to those of what it was made of."""
    *sequences, state = gradients
    dW = state[pieces.first].mT.masked_fill(pieces.fresh.view(-1, 1, 1, 1), 0)
    steps = sequences[0].shape[1]  # of all rows; the first input has no writes
    found = []
    for dimensions, x in zip(rule.shapes.dimensions, sequences, strict=False):
        if "n" in dimensions:
            x = x.unflatten(1, (steps, -1)).transpose(2, 3)
        found.append(_time_major(x, pieces))
    return [*found, dW]


def _time_major(x: Tensor, pieces: Pieces) -> Tensor:
    return x.squeeze(0).unflatten(0, (len(pieces.first), -1)).transpose(0, 1)
