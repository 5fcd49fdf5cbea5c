"""The GRU recurrence in Triton: as the LSTM's, each step is a matrix product and one kernel for the rest."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operator import Operator
from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from .lstm import BLOCK, weight_gradient
from .steps import tanh


@triton.jit
def forward_kernel(gates, recurrent, bias, h, reset, h_next, acts, N, gates_b, BLOCK: tl.constexpr):
    """Compute one step: h and h_next `[B, N]`, recurrent `[B, 3 N]` without bias; acts `[B, 4 N]`: r, z, n
    and the recurrent share of n."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    fresh = tl.load(reset + b)
    gates += b * gates_b
    recurrent += b * 3 * N
    acts += b * 4 * N
    before = tl.where(fresh, 0.0, tl.load(h + b * N + i, mask=inside, other=0.0))
    # To forget h is to forget its contribution.
    on_r = tl.where(fresh, 0.0, tl.load(recurrent + i, mask=inside, other=0.0))
    on_z = tl.where(fresh, 0.0, tl.load(recurrent + N + i, mask=inside, other=0.0))
    on_n = tl.where(fresh, 0.0, tl.load(recurrent + 2 * N + i, mask=inside, other=0.0))
    on_r += tl.load(bias + i, mask=inside, other=0.0)
    on_z += tl.load(bias + N + i, mask=inside, other=0.0)
    on_n += tl.load(bias + 2 * N + i, mask=inside, other=0.0)
    r = tl.sigmoid(tl.load(gates + i, mask=inside, other=0.0) + on_r)
    z = tl.sigmoid(tl.load(gates + N + i, mask=inside, other=0.0) + on_z)
    n = tanh(tl.load(gates + 2 * N + i, mask=inside, other=0.0) + r * on_n)
    tl.store(h_next + b * N + i, n + z * (before - n), mask=inside)
    tl.store(acts + i, r, mask=inside)
    tl.store(acts + N + i, z, mask=inside)
    tl.store(acts + 2 * N + i, n, mask=inside)
    tl.store(acts + 3 * N + i, on_n, mask=inside)


@triton.jit
def backward_kernel(acts, h, reset, reset_next, dy, dh, direct, dgates, drecurrent, N, BLOCK: tl.constexpr):
    """Compute one step back: dh comes from the next step's product, direct is what passes by it, `[B, N]`
    both; direct moves to before this step."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    acts += b * 4 * N
    dgates += b * 3 * N
    drecurrent += b * 3 * N
    r = tl.load(acts + i, mask=inside, other=0.0)
    z = tl.load(acts + N + i, mask=inside, other=0.0)
    n = tl.load(acts + 2 * N + i, mask=inside, other=0.0)
    on_n = tl.load(acts + 3 * N + i, mask=inside, other=0.0)
    before = tl.where(tl.load(reset + b), 0.0, tl.load(h + b * N + i, mask=inside, other=0.0))
    later = tl.load(dh + b * N + i, mask=inside, other=0.0) + tl.load(
        direct + b * N + i, mask=inside, other=0.0
    )
    dh_row = tl.where(tl.load(reset_next + b), 0.0, later) + tl.load(dy + b * N + i, mask=inside, other=0.0)
    dn = dh_row * (1 - z) * (1 - n * n)
    dr = dn * on_n * r * (1 - r)
    dz = dh_row * (before - n) * z * (1 - z)
    tl.store(dgates + i, dr, mask=inside)
    tl.store(dgates + N + i, dz, mask=inside)
    tl.store(dgates + 2 * N + i, dn, mask=inside)
    tl.store(drecurrent + i, dr, mask=inside)
    tl.store(drecurrent + N + i, dz, mask=inside)
    tl.store(drecurrent + 2 * N + i, dn * r, mask=inside)
    tl.store(direct + b * N + i, dh_row * z, mask=inside)


def _results(
    gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, reset: Tensor, save: bool
) -> tuple[Tensor, Tensor]:
    """Allocate h and, empty unless `save`, the gates."""
    T, (B, N) = len(gates), h0.shape
    return h0.new_empty(T, B, N), gates.new_empty((T, B, 4 * N) if save else 0)


def _fill(results: tuple[Tensor, Tensor], *inputs: Any) -> None:
    gates, weight, bias, h0, reset, save = inputs
    gates = gates if gates.stride(-1) == 1 else gates.contiguous()
    bias, reset, before = bias.contiguous(), reset.contiguous(), h0.contiguous()
    h, acts = results
    T, B, N = h.shape
    if not save:
        acts = gates.new_empty(1, B, 4 * N)
    recurrent = gates.new_empty(B, 3 * N)
    with torch.cuda.device_of(reset):
        for t in range(T):
            torch.mm(before, weight.mT, out=recurrent)
            step = gates[t], recurrent, bias, before, reset[t], h[t], acts[t * save]
            forward_kernel[B, triton.cdiv(N, BLOCK)](*step, N, gates.stride(1), BLOCK)
            before = h[t]


def _gradients(*inputs: Any) -> tuple[Tensor, ...]:
    """Allocate those of gates, of their recurrent share, and of h0."""
    *_, h, _ = inputs
    T, B, N = h.shape
    return h.new_empty(T, B, 3 * N), h.new_empty(T, B, 3 * N), h.new_empty(B, N)


def _fill_gradients(gradients: tuple[Tensor, ...], *inputs: Any) -> None:
    weight, reset, acts, h0, h, dy = inputs
    T, B, N = h.shape
    dy = torch.zeros_like(h) if dy is None else dy.contiguous()
    dgates, drecurrent, dh0 = gradients
    dh, direct = torch.zeros_like(h[0]), torch.zeros_like(h[0])
    h0, reset = h0.contiguous(), torch.cat((reset, torch.zeros_like(reset[:1])))
    with torch.cuda.device_of(reset):
        for t in reversed(range(T)):
            before = h[t - 1] if t else h0
            step = acts[t], before, reset[t], reset[t + 1], dy[t], dh, direct, dgates[t], drecurrent[t]
            backward_kernel[B, triton.cdiv(N, BLOCK)](*step, N, BLOCK)
            torch.mm(drecurrent[t], weight, out=dh)
    torch.add(dh, direct, out=dh0).masked_fill_(reset[0].unsqueeze(-1), 0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    _, weight, _, h0, reset, _ = inputs
    h, acts = output
    ctx.save_for_backward(weight, reset, acts, h0, h)


@without_autocast
def _differentiate(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    weight, reset, acts, h0, h = ctx.saved_tensors
    dgates, drecurrent, dh0 = _backward(weight, reset, acts, h0, h, dy)
    dweight = weight_gradient(drecurrent, h0, h, reset)
    return dgates, dweight, drecurrent.sum((0, 1)), dh0, None, None


_backward = Operator("gru_backward", "weight reset acts h0 h dy?", 3, _gradients, _fill_gradients)
_forward = Operator(
    "gru_forward", "gates weight bias h0 reset | save:bool", 2, _results, _fill, _save, _differentiate
)


def gru(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Equals `reference.gru` to rounding; the backend comes last."""
    *floats, reset, _ = inputs
    h, _ = _forward(*floats, reset, wants_gradient(*floats))
    return h, h[-1]
