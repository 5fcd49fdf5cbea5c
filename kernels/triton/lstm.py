"""The LSTM recurrence in Triton: each step is one of torch's matrix products and one kernel for the rest.

One kernel for the whole unroll, as fast weights have, would be slower: the recurrent weights fit no single
multiprocessor, so each program would read all of them (1 MB for 256 units) at every step, and a batch of 32
rows keeps only two programs busy. A product spreads over the whole GPU, and what is left is elementwise:
resets, gates and c. To forget h is to forget its contribution to the gates.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operator import Operator
from ..precision import without_autocast
from ..pytorch.stepwise import wants_gradient
from .steps import tanh

BLOCK = 256
"""Units per program; a program computes one block of units of one row of the batch."""


@triton.jit
def forward_kernel(gates, recurrent, c, reset, h_next, c_next, acts, N, gates_b, BLOCK: tl.constexpr):
    """Compute one step: c and c_next `[B, N]`, recurrent and acts `[B, 4 N]`."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    fresh = tl.load(reset + b)
    gates += b * gates_b
    recurrent += b * 4 * N
    acts += b * 4 * N
    c_row = tl.where(fresh, 0.0, tl.load(c + b * N + n, mask=inside, other=0.0))
    # The order is i, f, g, o.
    i = tl.load(gates + n, mask=inside, other=0.0)
    i = tl.sigmoid(i + tl.where(fresh, 0.0, tl.load(recurrent + n, mask=inside, other=0.0)))
    f = tl.load(gates + N + n, mask=inside, other=0.0)
    f = tl.sigmoid(f + tl.where(fresh, 0.0, tl.load(recurrent + N + n, mask=inside, other=0.0)))
    g = tl.load(gates + 2 * N + n, mask=inside, other=0.0)
    g = tanh(g + tl.where(fresh, 0.0, tl.load(recurrent + 2 * N + n, mask=inside, other=0.0)))
    o = tl.load(gates + 3 * N + n, mask=inside, other=0.0)
    o = tl.sigmoid(o + tl.where(fresh, 0.0, tl.load(recurrent + 3 * N + n, mask=inside, other=0.0)))
    c_row = f * c_row + i * g
    tl.store(c_next + b * N + n, c_row, mask=inside)
    tl.store(h_next + b * N + n, o * tanh(c_row), mask=inside)
    tl.store(acts + n, i, mask=inside)
    tl.store(acts + N + n, f, mask=inside)
    tl.store(acts + 2 * N + n, g, mask=inside)
    tl.store(acts + 3 * N + n, o, mask=inside)


@triton.jit
def backward_kernel(acts, c, c_next, reset, reset_next, dy, dh, dc, dgates, N, BLOCK: tl.constexpr):
    """Compute one step back: dh comes from the next step's product; dc `[B, N]` moves to before this step."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    fresh = tl.load(reset + b)
    acts += b * 4 * N
    dgates += b * 4 * N
    i = tl.load(acts + n, mask=inside, other=0.0)
    f = tl.load(acts + N + n, mask=inside, other=0.0)
    g = tl.load(acts + 2 * N + n, mask=inside, other=0.0)
    o = tl.load(acts + 3 * N + n, mask=inside, other=0.0)
    c_row = tl.where(fresh, 0.0, tl.load(c + b * N + n, mask=inside, other=0.0))
    tanh_c = tanh(tl.load(c_next + b * N + n, mask=inside, other=0.0))
    dh_row = tl.load(dh + b * N + n, mask=inside, other=0.0)
    dh_row = tl.where(tl.load(reset_next + b), 0.0, dh_row) + tl.load(dy + b * N + n, mask=inside, other=0.0)
    dc_row = tl.load(dc + b * N + n, mask=inside, other=0.0) + dh_row * o * (1 - tanh_c * tanh_c)
    tl.store(dgates + n, dc_row * g * i * (1 - i), mask=inside)
    tl.store(dgates + N + n, dc_row * c_row * f * (1 - f), mask=inside)
    tl.store(dgates + 2 * N + n, dc_row * i * (1 - g * g), mask=inside)
    tl.store(dgates + 3 * N + n, dh_row * tanh_c * o * (1 - o), mask=inside)
    tl.store(dc + b * N + n, tl.where(fresh, 0.0, dc_row * f), mask=inside)


def _results(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, reset: Tensor, save: bool
) -> tuple[Tensor, ...]:
    """Allocate h, c after the last step and, empty unless `save`, c around all steps and the gates."""
    T, (B, N) = len(gates), h0.shape
    past = (gates.new_empty(shape if save else 0) for shape in ((T + 1, B, N), (T, B, 4 * N)))
    return h0.new_empty(T, B, N), c0.new_empty(B, N), *past


def _fill(results: tuple[Tensor, ...], *inputs: Any) -> None:
    gates, weight, h0, c0, reset, save = inputs
    gates = gates if gates.stride(-1) == 1 else gates.contiguous()
    reset = reset.contiguous()
    h, c_T, cs, acts = results
    T, B, N = h.shape
    if not save:
        cs, acts = c0.new_empty(T + 1, B, N), gates.new_empty(1, B, 4 * N)
    cs[0] = c0
    recurrent = gates.new_empty(B, 4 * N)
    before = h0
    with torch.cuda.device_of(reset):
        for t in range(T):
            torch.mm(before, weight.mT, out=recurrent)
            step = gates[t], recurrent, cs[t], reset[t], h[t], cs[t + 1], acts[t * save]
            forward_kernel[B, triton.cdiv(N, BLOCK)](*step, N, gates.stride(1), BLOCK)
            before = h[t]
    c_T.copy_(cs[-1])


def _gradients(weight: Tensor, reset: Tensor, cs: Tensor, acts: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """Allocate those of gates, h0 and c0."""
    return acts.new_empty(acts.shape), cs.new_empty(cs.shape[1:]), cs.new_empty(cs.shape[1:])


def _fill_gradients(gradients: tuple[Tensor, ...], *inputs: Any) -> None:
    weight, reset, cs, acts, dy, dc_T = inputs
    T, (B, N) = len(acts), cs.shape[1:]
    dgates, dh, dc = gradients
    dy = cs.new_zeros(T, B, N) if dy is None else dy.contiguous()
    dh.zero_()
    dc.zero_() if dc_T is None else dc.copy_(dc_T)
    reset = torch.cat((reset, torch.zeros_like(reset[:1])))
    with torch.cuda.device_of(reset):
        for t in reversed(range(T)):
            step = acts[t], cs[t], cs[t + 1], reset[t], reset[t + 1], dy[t], dh, dc, dgates[t]
            backward_kernel[B, triton.cdiv(N, BLOCK)](*step, N, BLOCK)
            torch.mm(dgates[t], weight, out=dh)
    dh.masked_fill_(reset[0].unsqueeze(-1), 0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    _, weight, h0, _, reset, _ = inputs
    h, _, cs, acts = output
    ctx.save_for_backward(weight, reset, cs, acts, h0, h)


@without_autocast
def _differentiate(
    ctx: Any, dy: Tensor | None, dc_T: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    weight, reset, cs, acts, h0, h = ctx.saved_tensors
    dgates, dh0, dc0 = _backward(weight, reset, cs, acts, dy, dc_T)
    return dgates, weight_gradient(dgates, h0, h, reset), dh0, dc0, None, None


def weight_gradient(dgates: Tensor, h0: Tensor, h: Tensor, reset: Tensor) -> Tensor:
    """Return the gradient of recurrent weights from that of what they contribute to gates."""
    before = torch.cat((h0.unsqueeze(0), h[:-1])).masked_fill(reset.unsqueeze(-1), 0)
    return dgates.flatten(0, 1).mT @ before.flatten(0, 1)


_backward = Operator("lstm_backward", "weight reset cs acts dy? dc_T?", 3, _gradients, _fill_gradients)
_forward = Operator(
    "lstm_forward", "gates weight h0 c0 reset | save:bool", 4, _results, _fill, _save, _differentiate
)


def lstm(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Equals `reference.lstm` to rounding; the backend comes last."""
    *floats, reset, _ = inputs
    h, c_T, *_ = _forward(*floats, reset, wants_gradient(*floats))
    return h, h[-1], c_T
