"""How much of each write survives some steps, by hand-written gradients: `kernels.pytorch.gated.survival`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deltabeast.kernels.pytorch.gated import survival


def by_loops(rates: Tensor) -> tuple[Tensor, Tensor]:
    C = rates.shape[-1]
    zero = torch.zeros_like(rates[..., 0])
    one = torch.ones_like(zero)
    steps = [[zero if i > t else _product(rates, i + 1, t, one) for i in range(C)] for t in range(C)]
    alive = [_product(rates, 0, t, one) for t in range(C)]
    return torch.stack([torch.stack(row, -1) for row in steps], -2), torch.stack(alive, -1)


def _product(rates: Tensor, first: int, last: int, one: Tensor) -> Tensor:
    for t in range(first, last + 1):
        one = one * rates[..., t]
    return one


@pytest.mark.parametrize("steps", [1, 2, 7, 16])
def test_survival_is_a_product_of_rates_and_so_are_its_gradients(steps: int, seed: int) -> None:
    rates = torch.rand(4, 2, steps, dtype=torch.float64)
    rates[0, 0, steps // 2] = rates[1, 1, 0] = rates[2, 0, -1] = 0
    rates[3] = 0
    results = []
    weights = [torch.randn_like(x) for x in by_loops(rates)]
    for function in (survival, by_loops):
        leaf = rates.clone().requires_grad_()
        outputs = function(leaf)
        loss = sum((x * weight).sum() for x, weight in zip(outputs, weights, strict=True))
        results.append([*outputs, *torch.autograd.grad(loss, leaf)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [survival, lambda rates: (rates.cumprod(-1),)])
def test_the_host_is_not_asked_whether_a_rate_is_zero(function: Any, seed: int) -> None:
    """On a GPU it would wait for the answer, which no CUDA graph can."""
    rates = torch.rand(2, 7, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.autograd.grad(sum(x.sum() for x in function(rates)), rates)
    asked = any(event.name == "aten::item" for event in profile.events() or ())
    assert asked == (function is not survival), "else this test sees nothing"
