"""What every convolution in C keeps to: results and gradients of a direct one in float64."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor


def layer(inputs: int, outputs: int, kernel: int = 3) -> list[Tensor]:
    """Draw weight and bias."""
    return [torch.randn(outputs, inputs, kernel, kernel) * (kernel**2 * inputs) ** -0.5, torch.randn(outputs)]


def any_layout(x: Tensor) -> Tensor:
    apart = torch.stack([x, x], -1)[..., 0]
    return random.choice([x, apart, x.to(memory_format=torch.channels_last)] if x.dim() == 4 else [x, apart])


def results(function: Callable[..., Tensor], inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """Return y and the gradients of its sum weighted by `weight`."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)]


def check(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Compare results and gradients with those in float64, relative to their norm."""
    weight = torch.randn_like(theirs(*inputs))
    got = results(ours, [any_layout(x) for x in inputs], any_layout(weight))
    want = results(theirs, [x.double() for x in inputs], weight.double())
    bound = 3e-2 if inputs[0].dtype is torch.bfloat16 else 1e-5
    for a, b, like in zip(got, want, [inputs[0], *inputs], strict=True):
        assert a.dtype == like.dtype and a.shape == b.shape
        assert (a - b).norm() <= bound * b.norm()
