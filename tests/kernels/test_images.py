"""What stands between convolutions: in C as in PyTorch, to the last bit where there is nothing to round."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from deltabeast.kernels.native import compiling, images

SIZES = [(84, 84), (11, 21), (2, 5), (1, 1), (1, 4), (3, 1)]
DTYPES = [torch.float32, torch.bfloat16]


def max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, padding=1)


def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of which many are equal, and some are zeros of either sign."""
    x = torch.randint(-3, 4, shape) * torch.tensor(0.25) * random.choice([-1, 1])
    return (x + torch.randn(shape) * random.choice([0, 1])).to(dtype)


def any_layout(x: Tensor) -> Tensor:
    """Of the same numbers; what is between them is no number."""
    dense = x.to(memory_format=torch.channels_last)
    wide = torch.full((x.shape[0], 2 * x.shape[1], *x.shape[2:]), math.nan, dtype=x.dtype)
    wide[:, ::2] = x
    return random.choice(
        [x.contiguous(), dense, wide[:, ::2], x.transpose(2, 3).contiguous().transpose(2, 3)]
    )


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(1e30), b.nan_to_num(1e30))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pooling(size: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    """Results bit for bit; gradients too in float32, and in bfloat16 as near as one rounding allows."""
    x = image(random.choice([1, 3]), random.choice([16, 32, 48]), *size, dtype=dtype)
    assert same(images.max_pool(any_layout(x)), max_pool(x))
    # of zeros 0 is the largest, not the first; to torch they are equal
    least = -torch.finfo(torch.float32).tiny
    ordered = torch.where((x == 0) & x.signbit(), least, x.float())
    leaf, precise = any_layout(x).detach().requires_grad_(), ordered.requires_grad_()
    y, expected = images.max_pool(leaf), max_pool(precise)
    assert same(y, max_pool(x))
    dy = any_layout(torch.randn_like(y))
    (got,), (want,) = torch.autograd.grad(y, leaf, dy), torch.autograd.grad(expected, precise, dy.float())
    if dtype == torch.float32:
        assert torch.equal(got, want)
    torch.testing.assert_close(got.float(), want, rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_none(dtype: torch.dtype, seed: int) -> None:
    odd = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-40, -1e-40])
    x = odd[torch.randint(len(odd), (2, 16, 9, 9))].to(dtype)
    assert same(images.max_pool(x), max_pool(x))
    x = x.requires_grad_()
    (gradient,) = torch.autograd.grad(images.max_pool(x).nan_to_num(0).sum(), x)
    assert gradient.isfinite().all()


def test_halves_are_rounded_to_even() -> None:
    """A pixel's gradient is the sum of those of two windows of which it is the maximum."""
    x = torch.zeros(1, 16, 1, 3, dtype=torch.bfloat16)
    x[..., 1] = 1
    x.requires_grad_()
    dy = torch.full((1, 16, 1, 2), 1 / 256, dtype=torch.bfloat16)
    dy[0, :, 0, 0] = 1 + torch.arange(16) / 128  # each next to the one before
    (got,) = torch.autograd.grad(images.max_pool(x), x, dy)
    assert torch.equal(got[..., 1], dy.float().sum(-1).bfloat16())


@pytest.mark.parametrize("channels", [1, 4, 5])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_bytes_become_numbers(channels: int, dtype: torch.dtype, seed: int) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16) + torch.randint(
        256, (2, 2 * channels, 1, 1)
    )
    odd = torch.randint(256, (3, 2 * channels, 13, 7))
    for frame in (every.byte()[:, ::2], odd.byte()[:, ::2]):
        got = images.scaled(frame, dtype)
        assert torch.equal(got, frame.to(dtype) / 255) and got.dtype == dtype
        assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("why", ["no compiler", "float64", "12 channels"])
def test_torch_does_what_c_cannot(why: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = image(2, 12 if why == "12 channels" else 16, 9, 8)
    x = x.double() if why == "float64" else x
    if why == "no compiler":
        monkeypatch.setattr(compiling, "unsupported_reason", lambda source, define: "there is none")
        frame = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
        assert torch.equal(images.scaled(frame, torch.float32), frame / 255)
    monkeypatch.setattr(compiling, "library", None)
    assert same(images.max_pool(x), max_pool(x))


def test_only_bytes_are_scaled() -> None:
    with pytest.raises(ValueError, match=r"^scaled: frame is torch.float32; give torch.uint8$"):
        images.scaled(torch.zeros(3, 16, 4, 4), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_nothing(dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, frame = image(5, 32, 13, 6, dtype=dtype), torch.randint(0, 256, (5, 4, 13, 6), dtype=torch.uint8)
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(images, "_threads", lambda largest, threads=threads: threads)
        leaf = x.clone().requires_grad_()
        y = images.max_pool(leaf)
        (gradient,) = torch.autograd.grad((y * y).sum(), leaf)
        results.append((y, gradient, images.scaled(frame, dtype)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_operators(seed: int) -> None:
    x = torch.randn(2, 16, 5, 4).to(memory_format=torch.channels_last).requires_grad_()
    torch.library.opcheck(images._max_pool.custom, (x, True))
    torch.library.opcheck(images._scaled.custom, (torch.zeros(2, 4, 5, 3, dtype=torch.uint8), torch.bfloat16))
    compiled = torch.compile(images.max_pool, backend="aot_eager", fullgraph=True)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert torch.equal(compiled(x), images.max_pool(x))
