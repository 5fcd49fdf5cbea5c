"""Convolutions of the small trunks, and rectifiers, by minimal filtering equal direct ones in float64."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest
import torch
from convolution_checks import check, layer, results
from torch import Tensor
from torch.nn import functional as F

from deltabeast.kernels.native import compiling, strided

KINDS = [  # inputs, outputs, strides in a kernel, stride
    (4, 32, 2, 4),
    (4, 16, 2, 4),
    (16, 32, 2, 2),
    (64, 64, 3, 1),
    (16, 48, 2, 1),
    (8, 16, 3, 2),
    (1, 32, 2, 4),  # from here on squares of pixels become one
    (3, 16, 3, 4),
    (4, 16, 2, 2),
]
CELLS = [(1, 1), (1, 6), (5, 5), (6, 4), (9, 9), (10, 7), (13, 3)]
"""Outputs of an image's columns and rows: tiles have 4 or 5."""


@pytest.fixture(params=[strided.DEFINE, "LANES=8", "LANES=16"], autouse=True)
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors as wide as registers, and of either width, whatever registers hold."""
    monkeypatch.setattr(strided, "DEFINE", request.param)


def direct(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    return F.relu(F.conv2d(x, weight, bias, stride))


def whole_numbers(kind: tuple[int, ...], outputs: tuple[int, int], frames: int) -> list[Tensor]:
    """Whole numbers, and biases halfway between them: rounding turns no rectifier on or off. Some images have
    pixels that no kernel reaches."""
    C, D, strides, stride = kind
    H, W = ((n + strides - 1) * stride + random.randrange(stride) for n in outputs)
    x = torch.randint(-3, 4, (frames, C, H, W)).float()
    weight = torch.randint(-1, 2, (D, C, strides * stride, strides * stride)).float()
    return [x, weight, torch.randint(-9, 9, (D,)) + 0.5]


@pytest.mark.parametrize("outputs", CELLS)
def test_equals_direct(outputs: tuple[int, int], seed: int) -> None:
    for kind in random.sample(KINDS, 3):
        inputs = whole_numbers(kind, outputs, random.choice([1, 3, 17]))
        assert strided._is_supported(*inputs, kind[-1])
        check(*(partial(f, stride=kind[-1]) for f in (strided.conv_relu, direct)), inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: tuple[int, ...], seed: int) -> None:
    inputs = whole_numbers(kind, (7, 11), 2)
    check(*(partial(f, stride=kind[-1]) for f in (strided.conv_relu, direct)), inputs)


def test_images_without_gradients(seed: int) -> None:
    x, weight, bias = whole_numbers(KINDS[0], (9, 9), 5)
    with_x = results(partial(strided.conv_relu, stride=4), [x, weight, bias], torch.ones(()))
    without = results(lambda *w: strided.conv_relu(x, *w, stride=4), [weight, bias], torch.ones(()))
    assert all(torch.equal(a, b) for a, b in zip(without, [with_x[0], *with_x[2:]], strict=True))


def test_nothing_depends_on_gradients_or_other_frames(seed: int) -> None:
    screens = random.choice([1, 4])
    x = torch.randn(9, screens, 28, 32).to(memory_format=torch.channels_last)
    weights = layer(screens, 16, 8)
    y = strided.conv_relu(x, *weights, 4)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, torch.cat([strided.conv_relu(one, *weights, 4) for one in x.split([1, 3, 5])]))
    assert torch.equal(y, strided.conv_relu(x.requires_grad_(), *weights, 4))


def test_threads_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a second run, and several parts make up the gradients of weights."""
    inputs = whole_numbers((16, 32, 2, 2), (6, 7), 200)
    first: list[Tensor] = []
    for threads in (1, 1, 2, 7):
        monkeypatch.setattr(strided, "_threads", lambda work, threads=threads: threads)
        got = results(partial(strided.conv_relu, stride=2), inputs, torch.ones(()))
        first = first or got
        assert all(torch.equal(a, b) for a, b in zip(got, first, strict=True))
    want = results(partial(direct, stride=2), [x.double() for x in inputs], torch.ones(()))
    assert all((a - b).norm() <= 1e-5 * b.norm() for a, b in zip(first, want, strict=True))


def test_no_frames(seed: int) -> None:
    x, *weights = whole_numbers(KINDS[0], (9, 9), 0)
    y, *gradients = results(partial(strided.conv_relu, stride=4), [x, *weights], torch.ones(()))
    assert y.shape == (0, 32, 9, 9) and all((g == 0).all() for g in gradients)


@pytest.mark.parametrize("default", [torch.float16, torch.float64])
def test_learns_where_it_played(default: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread's calls share was first made in inference mode, under another default precision."""
    monkeypatch.setattr(strided, "_own", threading.local())
    inputs = whole_numbers(KINDS[2], (6, 6), 3)
    try:
        torch.set_default_dtype(default)
        with torch.inference_mode():
            strided.conv_relu(*inputs, stride=2)
        got = results(partial(strided.conv_relu, stride=2), inputs, torch.ones(()))
    finally:
        torch.set_default_dtype(torch.float32)
    want = results(partial(direct, stride=2), inputs, torch.ones(()))
    assert all((a - b).norm() <= 1e-5 * b.norm() for a, b in zip(got, want, strict=True))


def test_nan_stays(seed: int) -> None:
    x, weights = torch.randn(2, 16, 12, 9), layer(16, 16)
    x[1, 3, 5, 5] = torch.nan
    got, want = strided.conv_relu(x, *weights, 1).isnan(), direct(x, *weights, 1).isnan()
    assert got[want].all() and not got[0].any()


WHYS = ["no compiler", "float64", "autocast", "8 numbers", "12 outputs", "small", "other kernel", "oblong"]


@pytest.mark.parametrize("why", WHYS)
def test_torch_does_what_c_cannot(why: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = stride = 2 if why == "8 numbers" else 4
    outputs, kernel = (12 if why == "12 outputs" else 16), (6 if why == "other kernel" else 2 * stride)
    weight, bias = layer(inputs, outputs, kernel)
    x = torch.randn(2, inputs, 20, 16)
    if why == "float64":
        x, weight, bias = x.double(), weight.double(), bias.double()
    if why == "no compiler":
        monkeypatch.setattr(compiling, "unsupported_reason", lambda source, define: "there is none")
    if why == "oblong":
        weight = weight[..., :4]
    monkeypatch.setattr(compiling, "library", None)
    if why == "small":
        with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
            strided.conv_relu(x[..., :7], weight, bias, stride)
        return
    with torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast"):
        assert torch.equal(strided.conv_relu(x, weight, bias, stride), direct(x, weight, bias, stride))


def test_what_c_would_read_past() -> None:
    x, weight, bias = torch.zeros(2, 16, 5, 5), torch.zeros(32, 16, 3, 3), torch.zeros(32)
    for wrong in ((x, weight, bias[:16]), (x[:, :8], weight, bias), (x[:, :, 0], weight, bias)):
        with pytest.raises(RuntimeError, match=r"[Ee]xpected"):
            strided.conv_relu(*wrong, 1)


def test_second_derivatives_are_refused(seed: int) -> None:
    x, weights = torch.randn(2, 16, 5, 4, requires_grad=True), layer(16, 16)
    y = strided.conv_relu(x, *weights, 1).square().sum()
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_operators(seed: int) -> None:
    x = torch.randn(2, 16, 6, 4).to(memory_format=torch.channels_last).requires_grad_()
    weights = [w.requires_grad_() for w in layer(16, 32, 4)]
    torch.library.opcheck(strided._conv_relu.custom, (x, *weights, 2))

    def both(x: Tensor) -> Tensor:
        return strided.conv_relu(x, *weights, 2) + 1

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert torch.equal(compiled(x), both(x))
