"""Random problems for each rule, with every hard case among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fastweight_helpers import assert_near, choice, errors, integer
from torch import Tensor

from deltabeast import kernels

Inputs = tuple[Tensor, ...]
NAMES = ("sum_rule", "delta_rule", "delta_rnn", "recurrent_delta", "lstm")
RULES: dict[str, Callable[..., Any]] = {name: getattr(kernels, name) for name in NAMES}
KEYS = ("softmax", "zero", "collinear", "unit")
STRENGTHS = ("sigmoid", "zero", "one")


def make_inputs(
    rule: str,
    steps: int,
    keys: str = "softmax",
    strengths: str = "sigmoid",
    most: int = 3,
    sizes: tuple[int, ...] = (16, 32, 60, 64),
) -> Inputs:
    """All of the rule's float arguments, float64, in its own order, of random sizes; B, H up to `most`."""
    B, H, K, V = integer(1, most), integer(1, most), choice(sizes), choice(sizes)
    if rule == "delta_rnn":
        K = V

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    q, k, v, beta = randn(steps, B, H, K), randn(steps, B, H, K), randn(steps, B, H, V), randn(steps, B, H)
    W, y0 = randn(B, H, V, K), randn(B, H, V)
    if rule == "lstm":
        N = V + 1  # no power of two, and no size anything likes
        return 2 * randn(steps, B, 4 * N), randn(4 * N, N) * N**-0.5, randn(B, N), randn(B, N)
    if rule == "recurrent_delta":
        if strengths != "sigmoid":
            beta = torch.full_like(beta, -60 if strengths == "zero" else 60)
        slow = (randn(H, V, K), randn(H, V, K), randn(H, V, V), randn(H, V))
        return q, k, v, beta, *(0.2 * R for R in slow), W, y0
    q, k = q.softmax(-1), _keys(k, keys)
    beta = beta.sigmoid() if strengths == "sigmoid" else torch.full_like(beta, strengths == "one")
    if rule == "sum_rule":
        return q, k, v, W
    if rule == "delta_rule":
        return q, k, v, beta, W
    return randn(steps, B, H, V), k, v, beta, W, y0


def assert_as_good_as_reference(
    rule: str, inputs: Inputs, reset: Tensor, got: dict[str, Tensor], want: dict[str, Tensor]
) -> None:
    """float32 results `got` within 2e-5 of `want`, the float64 reference.

    Where the terms of a sum cancel (a gradient of one number, say) float32 itself is further off. How far is
    luck: four times the worst is good enough, of the reference in float32 and of float64 ones with inputs off
    by what rounding a sum of 64 terms costs.
    """
    bad = [name for name in want if max(errors(got[name].cpu(), want[name])) > 2e-5]
    if not bad:
        return
    rounding = torch.finfo(torch.float32).eps / 2 * 64**0.5
    others = [run(rule, inputs, reset, "reference", torch.float32)]
    for _ in range(4):
        near = tuple(x * (1 + rounding * torch.randn_like(x)) for x in inputs)
        others.append(run(rule, near, reset, "reference", torch.float64))
    for name in bad:
        off = max(max(errors(other[name], want[name])) for other in others)
        assert_near(name, got[name].cpu(), want[name], max(2e-5, 4 * off))


def _keys(k: Tensor, kind: str) -> Tensor:
    if kind == "softmax":
        return k.softmax(-1)
    if kind == "zero":
        some = torch.rand(k.shape[:3], dtype=k.dtype).round().unsqueeze(-1)
        return k.softmax(-1) * some
    k = k / k.norm(dim=-1, keepdim=True)
    return k[:1].expand_as(k).clone() if kind == "collinear" else k


def run(
    rule: str, inputs: Inputs, reset: Tensor, backend: str, dtype: torch.dtype, device: str = "cpu"
) -> dict[str, Tensor]:
    """Outputs and the gradients of one fixed random loss of all of them, by name, on the CPU."""
    leaves = [x.to(device, dtype, copy=True).requires_grad_() for x in inputs]
    outputs = RULES[rule](*leaves, reset.to(device), backend=backend)
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum()
        for out in outputs
    )
    grads = torch.autograd.grad(loss, leaves)
    result = {f"output {i}": out.detach().cpu() for i, out in enumerate(outputs)}
    return result | {f"gradient {i}": grad.cpu() for i, grad in enumerate(grads)}
