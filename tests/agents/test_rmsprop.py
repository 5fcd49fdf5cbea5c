"""A step without the host is torch's step, but for the rounding of a root, or none at all."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from deltabeast.agents.cpu.optimizer import fused_rmsprop_if_finite
from deltabeast.agents.rmsprop import RMSprop, rmsprop_if_finite

SETTINGS = {"lr": 0.003, "alpha": 0.97, "eps": 0.01}


def make_parameters() -> list[nn.Parameter]:
    """A layout that is not contiguous, a scalar, and one that never has a gradient."""
    convolution = torch.randn(8, 3, 3, 3).to(memory_format=torch.channels_last)
    return [nn.Parameter(x) for x in (convolution, torch.randn(()), torch.randn(5), torch.randn(7, 11))]


def give_gradients(*models: list[nn.Parameter]) -> None:
    for i, parameters in enumerate(zip(*models, strict=True)):
        gradient = torch.randn_like(parameters[0]) * 10.0 ** float(torch.randint(-9, 9, ()))
        for parameter in parameters:
            parameter.grad = None if i == 2 else gradient.clone()


@pytest.fixture(autouse=True, params=[rmsprop_if_finite, fused_rmsprop_if_finite], ids=["plain", "fused"])
def _arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARITHMETIC, "step", request.param)


ARITHMETIC: dict[str, Any] = {}


def step(optimizer: RMSprop, lr: float, sound: bool = True) -> None:
    optimizer.step_if_finite(torch.tensor(sound), torch.tensor(lr), torch.tensor(1.0), ARITHMETIC["step"])


def everything(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = optimizer.param_groups[0]["params"]
    states = [optimizer.state[p] for p in parameters if p in optimizer.state]
    return [*parameters, *(x for state in states for x in state.values())]


def assert_same(one: torch.optim.Optimizer, other: torch.optim.Optimizer, tolerance: float = 0.0) -> None:
    for x, y in zip(everything(one), everything(other), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def test_it_is_torchs_with_any_learning_rate(seed: int) -> None:
    ours = make_parameters()
    theirs = copy.deepcopy(ours)
    optimizer, expected = RMSprop(ours, **SETTINGS), torch.optim.RMSprop(theirs, **SETTINGS)
    for lr in (0.003, 0.1, 1e-6, 0.0, 0.02):
        give_gradients(ours, theirs)
        expected.param_groups[0]["lr"] = lr
        expected.step()
        step(optimizer, lr)
        assert_same(optimizer, expected, 3e-7)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1.0])
def test_without_being_sound_it_changes_nothing(poison: float, seed: int) -> None:
    """From the first step, before there is any state; the steps after it are as if it had not been."""
    ours = make_parameters()
    theirs = copy.deepcopy(ours)
    optimizer, expected = RMSprop(ours, **SETTINGS), RMSprop(theirs, **SETTINGS)
    for _ in range(3):
        give_gradients(ours)
        ours[0].grad[1, 2, 0] = poison  # type: ignore[index]
        ours[1].grad.fill_(poison)  # type: ignore[union-attr]
        before = copy.deepcopy(ours)
        step(optimizer, 0.1, sound=False)
        assert all(torch.equal(x, y) for x, y in zip(ours, before, strict=True))
        give_gradients(ours, theirs)
        step(optimizer, 0.1)
        step(expected, 0.1)
        assert_same(optimizer, expected)


def test_its_state_is_torchs_in_both_directions(seed: int) -> None:
    ours = make_parameters()
    theirs = copy.deepcopy(ours)
    optimizer, expected = RMSprop(ours, **SETTINGS), torch.optim.RMSprop(theirs, **SETTINGS)
    give_gradients(ours, theirs)
    step(optimizer, SETTINGS["lr"])
    expected.step()
    saved = optimizer.state_dict(), expected.state_dict()
    assert saved[0]["param_groups"] == saved[1]["param_groups"]
    optimizer, expected = RMSprop(ours, **SETTINGS), torch.optim.RMSprop(theirs, **SETTINGS)
    expected.load_state_dict(copy.deepcopy(saved[0]))
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    give_gradients(ours, theirs)
    step(optimizer, SETTINGS["lr"])
    expected.step()
    assert_same(optimizer, expected, 3e-7)
