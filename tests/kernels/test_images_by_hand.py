"""The same functions into given tensors, and their gradients without autograd, in C and in PyTorch alike."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from deltabeast.kernels.native import compiling, images

from .test_images import DTYPES, any_layout, image, same

SIZES = [(84, 84), (11, 21), (2, 5), (1, 1), (1, 4), (3, 1)]


@pytest.fixture(params=["C", "PyTorch", "12 channels"])
def channels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many channels images have; not all numbers of them, and not all machines, go to C."""
    if request.param == "PyTorch":
        monkeypatch.setattr(compiling, "problem", lambda source, define: "there is none")
        monkeypatch.setattr(compiling, "library", None)
    return 12 if request.param == "12 channels" else 16


def inside(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Callable[[], bool]]:
    """Part of a larger buffer of what nobody wants to find, and whether the rest is as it was."""
    N = shape[0]
    poison = 255 if dtype == torch.uint8 else 7e8
    whole = torch.full((N + 2, *shape[1:]), poison, dtype=dtype).to(memory_format=torch.channels_last)
    before = whole.clone()
    return whole[1:-1], lambda: torch.equal(whole[0], before[0]) and torch.equal(whole[-1], before[-1])


def exact(*shape: int, dtype: torch.dtype) -> Tensor:
    """Gradients whose sums are exact, even in bfloat16."""
    return any_layout((torch.randint(-12, 13, shape) / 4).to(dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pooling(size: tuple[int, int], dtype: torch.dtype, channels: int, seed: int) -> None:
    x = image(random.choice([1, 3]), channels, *size, dtype=dtype) + 0  # to C, 0 is more than -0
    precise = x.double().requires_grad_()
    want = F.max_pool2d(precise, 3, stride=2, padding=1)
    shape = tuple(want.shape)
    (y, y_rest), (r, r_rest), (which, which_rest) = (inside(shape, t) for t in (dtype, dtype, torch.uint8))
    images.pool_relu_into(any_layout(x), y, r, which)
    assert same(y, want.to(dtype)) and same(r, F.relu(want).to(dtype))
    assert y_rest() and r_rest() and which_rest()
    again, r_again = torch.empty_like(y), torch.empty_like(r)
    images.pool_relu_into(x, again, r_again)
    assert same(again, y) and same(r_again, r)

    dy, dr = (exact(*shape, dtype=dtype) for _ in range(2))
    (dx,) = torch.autograd.grad((want * dy + F.relu(want) * dr).sum(), precise)
    got = images.pool_relu_backward(dy, dr, any_layout(r), which.contiguous(), *size)
    assert same(got, dx.to(dtype)) and got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype: torch.dtype, channels: int, seed: int) -> None:
    shape = (3, channels, 7, 5)
    a, b, dy, dr = (exact(*shape, dtype=dtype) for _ in range(4))
    (y, y_rest), (r, r_rest) = (inside(shape, dtype) for _ in range(2))
    images.add_relu_into(a, b, y, r)
    want = (a.double() + b.double()).to(dtype)
    assert same(y, want) and same(r, want.clamp(min=0)) and y_rest() and r_rest()
    images.add_relu_into(y, b, y, r)  # in place
    assert same(y, (want.double() + b.double()).to(dtype)) and same(r, y.clamp(min=0))
    d = images.add_relu_backward(dy, dr, any_layout(r))
    assert same(d, (dy.double() + dr.double() * (r > 0)).to(dtype))
    assert d.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_bytes(dtype: torch.dtype, channels: int, seed: int) -> None:
    frame = torch.randint(0, 256, (2, 2 * random.choice([1, 4, 5]), 13, 7), dtype=torch.uint8)[:, ::2]
    y, rest = inside(tuple(frame.shape), dtype)
    images.scaled_into(frame, y)
    assert same(y, frame.to(dtype) / 255) and rest()


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_compiler_to_the_last_bit(
    dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of any size, rounded at the end only."""
    x = image(2, 16, 9, 8, dtype=dtype) + 0
    dy, dr = (torch.randn(2, 16, 5, 4).to(dtype) for _ in range(2))
    results = []
    for why in (None, "there is none"):
        if why:
            monkeypatch.setattr(compiling, "problem", lambda source, define: "there is none")
            monkeypatch.setattr(compiling, "library", None)
        y, r, which = (torch.empty_like(dy, dtype=t) for t in (dtype, dtype, torch.uint8))
        y, r, which = (out.to(memory_format=torch.channels_last) for out in (y, r, which))
        images.pool_relu_into(x, y, r, which)
        dx = images.pool_relu_backward(dy, dr, r, which, 9, 8)
        results.append((y, r, which, dx, images.add_relu_backward(dy, dr, r)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_does_not_fit() -> None:
    """C would read or write past the end, or numbers as others."""

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype).to(memory_format=torch.channels_last)

    x, y, which = new(3, 16, 8, 8), new(3, 16, 4, 4), new(3, 16, 4, 4, dtype=torch.uint8)
    wide = new(3, 32, 4, 4)[:, :16]
    for bad in (y[:2], new(3, 16, 4, 5), y.bfloat16(), y.to("meta")):
        wanted = r"give torch.float32 \[3, 16, 4, 4\] on cpu$"
        for function, inputs, name in (
            ("pool_relu_into", (x, bad, y), "y"),
            ("pool_relu_into", (x, y, bad), "r"),
            ("add_relu_into", (y, bad, y, y), "b"),
            ("add_relu_into", (y, y, bad, y), "y"),
            ("add_relu_into", (y, y, y, bad), "r"),
            ("pool_relu_backward", (bad, y, y, which, 8, 8), "dy"),
            ("pool_relu_backward", (y, bad, y, which, 8, 8), "dr"),
            ("add_relu_backward", (bad, y, y), "dy"),
            ("add_relu_backward", (y, bad, y), "dr"),
        ):
            with pytest.raises(ValueError, match=rf"^{function}: {name} is torch\.[^\n]*; {wanted}"):
                getattr(images, function)(*inputs)
    for function, inputs, name in (
        ("pool_relu_into", (x, y, y, y), "which"),
        ("pool_relu_backward", (y, y, y, y, 8, 8), "which"),
    ):
        with pytest.raises(ValueError, match=rf"^{function}: {name} is torch\.[^\n]*; give torch.uint8 "):
            getattr(images, function)(*inputs)
    for function, inputs in (
        ("pool_relu_into", (x, wide, y)),
        ("add_relu_into", (y, y, y, wide)),
        ("scaled_into", (which, wide)),
    ):
        with pytest.raises(ValueError, match=rf"^{function}: [yr] has strides [^\n]*; give one made with"):
            getattr(images, function)(*inputs)
    with pytest.raises(ValueError, match=r"^pool_relu_backward: r is [^\n]*; give \[3, 16, 4, 5\], as win"):
        images.pool_relu_backward(y, y, y, which, 8, 9)
    with pytest.raises(ValueError, match=r"^scaled_into: frame is torch.float32; give torch.uint8$"):
        images.scaled_into(x, x)
