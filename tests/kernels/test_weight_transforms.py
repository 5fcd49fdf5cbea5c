"""What kernels make of weights: once, until a weight changes or the transforms are forgotten."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from deltabeast.kernels.native import weight_transforms
from deltabeast.kernels.native.strided import conv_relu
from deltabeast.kernels.native.weight_transforms import cached_transform, start_transform_cache
from deltabeast.kernels.native.winograd import conv3x3


class Maker:
    """Makes twice the weight, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, weight: Tensor, how: str = "doubled") -> Tensor:
        def make() -> Tensor:
            self.count += 1
            return 2 * weight.detach()

        return cached_transform(weight, how, make)


@pytest.fixture(autouse=True)
def _nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_transforms, "_own", weight_transforms._Own())


def test_nothing_is_cached_before_somebody_asks() -> None:
    weight, maker = Parameter(torch.randn(3)), Maker()
    assert maker(weight) is not maker(weight) and maker.count == 2


def test_it_is_made_once_until_it_is_forgotten() -> None:
    weight, other, maker = Parameter(torch.randn(3)), Parameter(torch.randn(3)), Maker()
    start_transform_cache()
    first = maker(weight)
    assert maker(weight) is first and maker.count == 1
    assert maker(other) is not first and maker(weight, "otherwise") is not first and maker.count == 3
    assert maker(weight) is first and torch.equal(first, 2 * weight)
    start_transform_cache()
    assert maker(weight) is not first


def test_a_weight_that_changes_is_noticed() -> None:
    weight, maker = Parameter(torch.randn(3)), Maker()
    start_transform_cache()
    before = maker(weight)
    with torch.no_grad():
        weight.add_(1)
    after = maker(weight)
    assert not torch.equal(after, before) and torch.equal(after, 2 * weight)


def test_others_than_parameters_are_made_anew() -> None:
    maker, given = Maker(), torch.randn(3)
    with torch.inference_mode():
        of_inference = Parameter(torch.randn(3))
    start_transform_cache()
    for weight in (given, given, of_inference, of_inference):
        maker(weight)
    assert maker.count == 4


def test_threads_are_apart() -> None:
    """Another thread may change its own copy's weights whenever it likes."""
    weight, maker = Parameter(torch.randn(3)), Maker()
    start_transform_cache()
    first, found = maker(weight), list[Tensor]()
    thread = threading.Thread(target=lambda: found.extend([maker(weight), maker(weight)]))
    thread.start()
    thread.join()
    assert len({id(each) for each in (first, *found)}) == 3


@pytest.mark.parametrize("padded", [True, False])
def test_convolutions_learn_the_same_with_cached_transforms(padded: bool, seed: int) -> None:
    x, weight, bias = (
        torch.randn(2, 32, 9, 9),
        Parameter(torch.randn(32, 32, 3, 3)),
        Parameter(torch.randn(32)),
    )
    x = x.requires_grad_()

    def gradients() -> tuple[Tensor, ...]:
        y = conv3x3(x, weight, bias) if padded else conv_relu(x, weight, bias, 1)
        loss = (y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum()
        return y, *torch.autograd.grad(loss, [x, weight, bias])

    anew = gradients()
    start_transform_cache()
    for each in (gradients(), gradients()):
        for got, want in zip(each, anew, strict=True):
            torch.testing.assert_close(got, want)
