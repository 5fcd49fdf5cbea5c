"""What the tests of kernels and cores share: random sizes, reset patterns, error measures."""

from __future__ import annotations

import torch
from torch import Tensor

RESET_PATTERNS = ("none", "first", "last", "all", "random")


def integer(low: int, high: int) -> int:
    """Uniform in low..high, from torch's generator."""
    return int(torch.randint(low, high + 1, ()))


def choice(values: tuple[int, ...]) -> int:
    return values[integer(0, len(values) - 1)]


def make_reset(pattern: str, steps: int, batch: int) -> Tensor:
    reset = torch.zeros(steps, batch, dtype=torch.bool)
    if pattern == "first":
        reset[0] = True
    elif pattern == "last":
        reset[-1] = True
    elif pattern == "all":
        reset[:] = True
    elif pattern == "random":
        reset = torch.rand(steps, batch) < torch.rand(()) * 0.5
    return reset


def assert_near(name: str, got: Tensor, want: Tensor, tolerance: float) -> None:
    """Relative error of the whole tensor, and of each row (last dimension) so that none hides among many."""
    assert got.shape == want.shape, f"{name}: {list(got.shape)} instead of {list(want.shape)}"
    if not want.numel():
        return
    whole, worst = errors(got, want)
    assert whole <= tolerance, f"{name}: relative error {whole:.2e}"
    assert worst <= 10 * tolerance, f"{name}: relative error of one row {worst:.2e}"


def errors(got: Tensor, want: Tensor) -> tuple[float, float]:
    """The relative error of a tensor, and of its worst row."""
    if torch.equal(got.double(), want.double()):
        return 0.0, 0.0
    got, want = got.detach().double(), want.detach().double()
    error = (got - want).reshape(-1, want.shape[-1] if want.dim() else 1).norm(dim=-1)
    rows = want.reshape(-1, want.shape[-1] if want.dim() else 1).norm(dim=-1)
    typical = rows.square().mean().sqrt()
    whole = error.norm() / rows.norm().clamp(min=1e-30)
    return float(whole), float((error / (rows + 0.1 * typical).clamp(min=1e-30)).max())
