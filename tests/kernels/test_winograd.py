"""Convolutions by minimal filtering equal direct ones in float64, as far as float32 and bfloat16 go."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from convolution_checks import check, layer, results
from torch import Tensor
from torch.nn import functional as F

from deltabeast.kernels.native import compiling, winograd

SIZES = [(1, 1), (1, 7), (2, 2), (11, 11), (21, 21), (42, 42), (5, 4), (9, 12)]
CHANNELS = [(16, 16), (16, 32), (32, 32), (48, 16), (32, 16)]


def conv3x3(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, padding=1)


def residual_block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return x + conv3x3(F.relu(conv3x3(F.relu(x), w1, b1)), w2, b2)


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Of images, which are bfloat16 under autocast."""
    half = request.param is torch.bfloat16
    if half and torch.cpu._is_amx_tile_supported():
        pytest.skip("where there is AMX, PyTorch convolves bfloat16")
    with torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=False):
        yield request.param


@pytest.mark.parametrize("size", SIZES)
def test_convolutions(size: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    for inputs, outputs in [random.choice(CHANNELS), (16, 16)]:
        x = torch.randn(random.choice([1, 3, 17]) if max(size) < 40 else 2, inputs, *size, dtype=dtype)
        check(winograd.conv3x3, conv3x3, [x, *layer(inputs, outputs)])


def whole_block(channels: int, hidden: int, *size: int) -> list[Tensor]:
    """Whole numbers and biases halfway between them: rounding in float32 turns no rectifier on or off."""
    x = torch.randint(-3, 4, (random.choice([1, 3]), channels, *size)).float()
    w1 = torch.randint(-1, 2, (hidden, channels, 3, 3)).float()
    return [x, w1, torch.randint(-9, 9, (hidden,)) + 0.5, *layer(hidden, channels)]


@pytest.mark.parametrize("size", SIZES)
def test_residual_blocks(size: tuple[int, int], seed: int) -> None:
    check(winograd.residual_block, residual_block, whole_block(*random.choice(CHANNELS), *size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16], indirect=True)
def test_residual_blocks_are_two_convolutions(size: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    """In bfloat16 rounding turns rectifiers on and off, but the same ones."""

    def block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        return x + winograd.conv3x3(F.relu(winograd.conv3x3(F.relu(x), w1, b1)), w2, b2)

    x, *weights = whole_block(*random.choice(CHANNELS), *size)
    weight = torch.randn_like(x).to(dtype)
    ours, theirs = (results(f, [x.to(dtype), *weights], weight) for f in (winograd.residual_block, block))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and (a.double() - b).norm() <= 1e-2 * b.double().norm()


def test_nothing_depends_on_gradients_or_other_frames(dtype: torch.dtype, seed: int) -> None:
    x = torch.randn(5, 16, 13, 6, dtype=dtype).to(memory_format=torch.channels_last)
    weights = [*layer(16, 16), *layer(16, 16)]
    for function, inputs in ((winograd.conv3x3, weights[:2]), (winograd.residual_block, weights)):
        y = function(x, *inputs)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(y, torch.cat([function(one, *inputs) for one in x.split([1, 3, 1])]))
        assert torch.equal(y, function(x.requires_grad_(), *inputs))
        x = x.detach()


def test_threads_change_nothing(dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a second run, and several parts make up the gradients of weights."""
    x, weights = torch.randn(11, 16, 42, 42, dtype=dtype), [*layer(16, 32), *layer(32, 16)]
    first: list[Tensor] = []
    for threads in (1, 1, 2, 7):
        monkeypatch.setattr(winograd, "_threads", lambda work, threads=threads: threads)
        got = results(winograd.residual_block, [x, *weights], torch.ones(()))
        first = first or got
        assert all(torch.equal(a, b) for a, b in zip(got, first, strict=True))
    want = results(residual_block, [x.double(), *(w.double() for w in weights)], torch.ones(()))
    assert all((a - b).norm() <= 0.1 * b.norm() for a, b in zip(first, want, strict=True))


def test_nan_stays(dtype: torch.dtype, seed: int) -> None:
    x = torch.randn(2, 16, 12, 9, dtype=dtype)
    x[1, 3, 5, 5] = torch.nan
    for function, theirs, inputs in (
        (winograd.conv3x3, conv3x3, layer(16, 16)),
        (winograd.residual_block, residual_block, [*layer(16, 16), *layer(16, 16)]),
    ):
        got, want = function(x, *inputs).isnan(), theirs(x, *inputs).isnan()
        assert got[want].all() and not got[0].any()


@pytest.mark.parametrize("why", ["no compiler", "float64", "12 channels", "80 channels", "12 outputs"])
def test_torch_does_what_c_cannot(why: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    channels, hidden = {"12 channels": (12, 16), "80 channels": (80, 16), "12 outputs": (16, 12)}.get(
        why, (16, 16)
    )
    inputs = [torch.randn(2, channels, 5, 6), *layer(channels, hidden), *layer(hidden, channels)]
    if why == "float64":
        inputs = [x.double() for x in inputs]
    if why == "no compiler":
        monkeypatch.setattr(compiling, "unsupported_reason", lambda source, define: "there is none")
    monkeypatch.setattr(compiling, "library", None)
    assert torch.equal(winograd.conv3x3(*inputs[:3]), conv3x3(*inputs[:3]))
    assert torch.equal(winograd.residual_block(*inputs), residual_block(*inputs))


def test_weights_of_another_precision(seed: int) -> None:
    x, weight, bias = torch.randn(2, 16, 5, 6), *layer(16, 16)
    with pytest.raises(RuntimeError, match="type"):
        winograd.conv3x3(x, weight.double(), bias)


def test_images_of_another_precision_than_autocast(seed: int) -> None:
    inputs = [torch.randn(2, 16, 5, 6), *layer(16, 16)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = winograd.conv3x3(*inputs)
        assert y.dtype == torch.bfloat16 and torch.equal(y, conv3x3(*inputs))


def test_processors_that_multiply_tiles(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    inputs = [torch.randn(2, 16, 5, 6, dtype=torch.bfloat16), *layer(16, 16)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(winograd.conv3x3(*inputs), conv3x3(*inputs))


def test_what_c_would_read_past() -> None:
    x, weight, bias = torch.zeros(2, 16, 5, 5), torch.zeros(32, 16, 3, 3), torch.zeros(32)
    wanted = r"; give \[32, 16, 3, 3\] and \[32\]$"
    for weights in ((weight[:, :8], bias), (weight[..., :1], bias), (weight, bias[:16])):
        with pytest.raises(ValueError, match=r"^conv3x3: weight is [^\n]*" + wanted):
            winograd.conv3x3(x, *weights)
    with pytest.raises(ValueError, match=r"^conv3x3: x is \[16, 5, 5\]; give \[N, C, H, W\]$"):
        winograd.conv3x3(x[0], weight, bias)
    with pytest.raises(
        ValueError, match=r"^residual_block: w2 is \[32, 32, 3, 3\]; give 16 outputs, as x has channels$"
    ):
        winograd.residual_block(x, weight, bias, torch.zeros(32, 32, 3, 3), bias)


def test_second_derivatives_are_refused(seed: int) -> None:
    x, (weight, bias) = torch.randn(2, 16, 5, 4, requires_grad=True), layer(16, 16)
    y = winograd.conv3x3(x, weight, bias).square().sum()
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_operators(seed: int) -> None:
    x = torch.randn(2, 16, 5, 4).to(memory_format=torch.channels_last).requires_grad_()
    weights = [w.requires_grad_() for w in (*layer(16, 32), *layer(32, 16))]
    torch.library.opcheck(winograd._conv3x3.custom, (x, *weights[:2]))
    torch.library.opcheck(winograd._residual_block.custom, (x, *weights))

    def both(x: Tensor) -> Tensor:
        return winograd.conv3x3(winograd.residual_block(x, *weights), *weights[:2])

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert torch.equal(compiled(x), both(x))
