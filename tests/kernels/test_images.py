"""What stands between convolutions: in C as in PyTorch, to the last bit where there is nothing to round."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from deltabeast.kernels.native import compiling, images

SIZES = [(84, 84), (11, 21), (2, 5), (1, 1), (1, 4), (3, 1)]
DTYPES = [torch.float32, torch.bfloat16]
Two = tuple[Tensor, Tensor]


def pool_relu(x: Tensor) -> Two:
    y = F.max_pool2d(x, 3, stride=2, padding=1)
    return y, F.relu(y)


def add_relu(a: Tensor, b: Tensor) -> Two:
    return a + b, F.relu(a + b)


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


def check(ours: Callable[..., Two], theirs: Callable[..., Two], inputs: list[Tensor]) -> None:
    """Results bit for bit; gradients too in float32, and in bfloat16 as near as one rounding allows."""
    expected = theirs(*inputs)
    weights = [any_layout(torch.randn_like(y)) for y in expected]
    for used in ([0, 1], [0], [1]):
        leaves = [any_layout(x).detach().requires_grad_() for x in inputs]
        # Added to, since one that is overwritten may be no leaf.
        results = ours(*(leaf + 0 for leaf in leaves))
        assert all(same(got, want) for got, want in zip(results, expected, strict=True))
        precise = [x.float().requires_grad_() for x in inputs]
        sums = [sum((out[i] * weights[i]).sum() for i in used) for out in (results, theirs(*precise))]
        got, want = (torch.autograd.grad(s, xs) for s, xs in zip(sums, (leaves, precise), strict=True))
        for a, b in zip(got, want, strict=True):
            if a.dtype == torch.float32:
                assert torch.equal(a, b)
            torch.testing.assert_close(a.float(), b, rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pooling(size: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    x = image(random.choice([1, 3]), random.choice([16, 32, 48]), *size, dtype=dtype)
    check(images.pool_relu, pool_relu, [x])
    with torch.no_grad():
        assert all(same(a, b) for a, b in zip(images.pool_relu(x), pool_relu(x), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype: torch.dtype, seed: int) -> None:
    inputs = [image(3, 16, 7, 5, dtype=dtype) for _ in range(2)]
    check(images.add_relu, add_relu, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_none(dtype: torch.dtype, seed: int) -> None:
    odd = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-40, -1e-40])
    x, other = (odd[torch.randint(len(odd), (2, 16, 9, 9))].to(dtype) for _ in range(2))
    with torch.no_grad():
        for got, want in (
            (images.pool_relu(x), pool_relu(x)),
            (images.add_relu(x.clone(), other), add_relu(x, other)),
        ):
            assert all(same(a, b) for a, b in zip(got, want, strict=True))
    x = x.requires_grad_()
    (gradient,) = torch.autograd.grad(images.pool_relu(x)[0].nan_to_num(0).sum(), x)
    assert gradient.isfinite().all()


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
        monkeypatch.setattr(compiling, "problem", lambda source, define: "there is none")
        frame = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
        assert torch.equal(images.scaled(frame, torch.float32), frame / 255)
    monkeypatch.setattr(compiling, "library", None)
    got = images.pool_relu(x) + images.add_relu(x.clone(), x)
    assert all(same(a, b) for a, b in zip(got, pool_relu(x) + add_relu(x, x), strict=True))


def test_halves_are_rounded_to_even() -> None:
    a = (1 + torch.arange(32).view(1, 16, 2, 1) / 128).bfloat16()  # each next to the one before
    half = torch.full_like(a, 1 / 256)
    assert all(
        torch.equal(x, y) for x, y in zip(images.add_relu(a.clone(), half), add_relu(a, half), strict=True)
    )


def test_sums_of_two_kinds_of_numbers(seed: int) -> None:
    a, b = image(2, 16, 3, 3), image(2, 16, 3, 3, dtype=torch.bfloat16)
    assert all(same(x, y) for x, y in zip(images.add_relu(a.clone(), b), add_relu(a, b), strict=True))


def test_what_c_would_read_past() -> None:
    """Images that are smaller than those beside them, or stretch to them; bytes that are none."""
    a = torch.zeros(3, 16, 4, 4)
    for b in (a[:1], a[..., :1], a[0], a[:2], a.to("meta")):
        remedy = r"^add_relu: b is [^\n]*; give \[3, 16, 4, 4\] on cpu, as a is$"
        with pytest.raises(ValueError, match=remedy):
            images.add_relu(a.clone(), b)
    with pytest.raises(ValueError, match=r"^scaled: frame is torch.float32; give torch.uint8$"):
        images.scaled(a, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_nothing(dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, frame = image(5, 32, 13, 6, dtype=dtype), torch.randint(0, 256, (5, 4, 13, 6), dtype=torch.uint8)
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(images, "_threads", lambda largest, threads=threads: threads)
        leaf = x.clone().requires_grad_()
        y, r = images.pool_relu(leaf)
        y, r = images.add_relu(y, r)
        (gradient,) = torch.autograd.grad((y * y + r * torch.arange(3)).sum(), leaf)
        results.append((y, r, gradient, images.scaled(frame, dtype)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_operators(seed: int) -> None:
    x = torch.randn(2, 16, 5, 4).to(memory_format=torch.channels_last).requires_grad_()
    y, _ = images.pool_relu(x)
    y = y.detach().requires_grad_()
    torch.library.opcheck(images._pool_relu, (x, True))
    torch.library.opcheck(images._add_relu, (y, y.detach()))
    torch.library.opcheck(images._scaled, (torch.zeros(2, 4, 5, 3, dtype=torch.uint8), torch.bfloat16))

    def both(x: Tensor) -> Two:
        y, r = images.pool_relu(x)
        return images.add_relu(y, r)

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert all(torch.equal(a, b) for a, b in zip(compiled(x), both(x), strict=True))
