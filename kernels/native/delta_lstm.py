"""The Delta LSTM in C for CPUs: whole unrolls, forward and backward, by `delta_lstm.c`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from . import rules
from .compiling import addresses
from .operator import Operator

VARIANTS = "ABCD"

Results = tuple[Tensor, ...]


def delta_lstm(variant: str, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equals `reference.delta_lstm` to rounding; the backend comes last."""
    *floats, reset, _ = inputs
    y, R_T, c_T, *_ = _forward(*floats, reset, wants_gradient(*floats), VARIANTS.index(variant))
    return y, R_T, y[-1], c_T


def _forward_in_c(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    c0: Tensor,
    reset: Tensor,
    keep: bool,
    variant: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return y, R and c after the last step; empty unless `keep` the errors, what R was read with, c before
    each step, and the gates."""
    outputs = _forward_fake(z, k, v, beta, R, y0, c0, reset, keep, variant)
    z, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (z, k, v))
    R, y0, c0, reset = (x.contiguous() for x in (R, y0, c0, reset))
    strided = [rules._strided(x) for x in (z, k, v, beta)]
    rules._call("delta_lstm_forward", _heads(R), reset, *strided, *addresses(R, y0, c0, *outputs), variant)
    return outputs


def _forward_fake(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    c0: Tensor,
    reset: Tensor,
    keep: bool,
    variant: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    y, wide = y0.new_empty(len(z), *y0.shape), z.shape if keep else (0,)
    narrow = y.shape if keep else (0,)
    kept = z.new_empty(wide), z.new_empty(narrow), z.new_empty(narrow), z.new_empty(wide)
    return y, R.new_empty(R.shape), c0.new_empty(c0.shape), *kept


def _backward_in_c(
    k: Tensor,
    beta: Tensor,
    R: Tensor,
    reset: Tensor,
    y: Tensor,
    error: Tensor,
    p: Tensor,
    cells: Tensor,
    gates: Tensor,
    dy: Tensor | None,
    dR_T: Tensor | None,
    dc_T: Tensor | None,
    variant: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of z, k, v, beta, R, y0 and c0."""
    grads = _backward_fake(k, beta, R, reset, y, error, p, cells, gates, dy, dR_T, dc_T, variant)
    k = k if k.stride(-1) == 1 else k.contiguous()
    R, reset = R.contiguous(), reset.contiguous()
    ends = [None if x is None else x.contiguous() for x in (dy, dR_T, dc_T)]
    past = rules._new_past(_heads(R), 3 * len(reset))
    given = addresses(R, y, error, p, cells, gates, *ends, *grads, past)
    strided = rules._strided(k), rules._strided(beta)
    rules._call("delta_lstm_backward", _heads(R), reset, *strided, *given, variant)
    return grads


def _backward_fake(
    k: Tensor,
    beta: Tensor,
    R: Tensor,
    reset: Tensor,
    y: Tensor,
    error: Tensor,
    p: Tensor,
    cells: Tensor,
    gates: Tensor,
    dy: Tensor | None,
    dR_T: Tensor | None,
    dc_T: Tensor | None,
    variant: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dz, dk, dv = (gates.new_empty(gates.shape) for _ in range(3))
    dy0, dc0 = (p.new_empty(p.shape[1:]) for _ in range(2))
    return dz, dk, dv, beta.new_empty(beta.shape), R.new_empty(R.shape), dy0, dc0


def _heads(R: Tensor) -> Tensor:
    """One matrix a head, for their number."""
    return R[:, ::3]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.set_materialize_grads(False)
    _, k, _, beta, R, _, _, reset, _, ctx.variant = inputs
    y, _, _, *kept = output
    ctx.save_for_backward(k, beta, R, reset, y, *kept)


@without_autocast
def _differentiate(
    ctx: Any, dy: Tensor | None, dR_T: Tensor | None, dc_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    return *_backward(*ctx.saved_tensors, dy, dR_T, dc_T, ctx.variant), None, None, None


_backward = Operator("native_delta_lstm_backward", _backward_in_c, _backward_fake)
_forward = Operator("native_delta_lstm_forward", _forward_in_c, _forward_fake, _save, _differentiate)
