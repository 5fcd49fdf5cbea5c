"""Optimizer steps in C are torch's but for the rounding of a root, and left to torch where C cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from deltabeast.agents.adam import Adam, adam_if_finite
from deltabeast.agents.cpu.optimizer import fused_adam_if_finite, fused_rmsprop_if_finite
from deltabeast.agents.rmsprop import RMSprop, rmsprop_if_finite
from deltabeast.kernels.native import compiling, optimizers

SCALE = 0.375
"""rates, decays and scale are float32's, also where all else is float64"""
TRUE = torch.tensor(True)
BUILT = compiling.unsupported_reason("optimizers.c") is None


class Kind(NamedTuple):
    ours: Any
    theirs: Any
    settings: dict[str, Any]
    state: tuple[str, ...]
    """state that has torch's bits, step by step"""
    eager: Callable[..., None]
    fused: Callable[..., None]


KINDS = {
    "rmsprop": Kind(
        RMSprop,
        torch.optim.RMSprop,
        {"lr": 2**-8, "alpha": 1 - 2**-5, "eps": 0.01},
        ("square_avg", "step"),
        rmsprop_if_finite,
        fused_rmsprop_if_finite,
    ),
    "adam": Kind(
        Adam,
        torch.optim.Adam,
        {"lr": 2**-8, "betas": (1 - 2**-3, 1 - 2**-8), "eps": 1e-5},
        ("step",),
        adam_if_finite,
        fused_adam_if_finite,
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def channels_last(*shape: int) -> Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def steps_alike(
    kind: Kind, arithmetic: Callable[..., None], parameters: list[Tensor], gradients: list[Tensor]
) -> list[nn.Parameter]:
    """Compare three steps with torch's, and return the parameters after them."""
    ours = [nn.Parameter(x.clone()) for x in parameters]
    theirs = copy.deepcopy(ours)
    optimizer, expected = kind.ours(ours, **kind.settings), kind.theirs(theirs, **kind.settings)
    for scale in (1.0, 1e-4, 1e6):
        for p, q, gradient in zip(ours, theirs, gradients, strict=True):
            p.grad, q.grad = gradient * scale, gradient * scale * SCALE
        optimizer.step_if_finite(TRUE, torch.tensor(kind.settings["lr"]), torch.tensor(SCALE), arithmetic)
        expected.step()
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)
            for name in kind.state:
                assert torch.equal(optimizer.state[p][name], expected.state[q][name])
            for name, moment in expected.state[q].items():
                torch.testing.assert_close(optimizer.state[p][name], moment, rtol=1e-6, atol=1e-30)
    return ours


@pytest.mark.skipif(not BUILT, reason="no C compiler builds optimizers.c")
@pytest.mark.parametrize("threads", [1, 2])
@each_kind
def test_c_does_as_torch(kind: Kind, threads: int, seed: int) -> None:
    """Sizes around a vector's and the one from which threads share the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shapes: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (8, 33), (257, 259), (3, 2**16 // 3)]
        parameters = [*map(torch.randn, shapes), channels_last(8, 3, 4, 4)]
        gradients = [torch.randn_like(x) for x in parameters]
        squares = [torch.zeros_like(x) for x in parameters]
        assert optimizers.is_supported(parameters, gradients, squares)
        after = steps_alike(kind, kind.fused, parameters, gradients)
    finally:
        torch.set_num_threads(before)
    assert all((x != y).all() for x, y in zip(parameters, after, strict=True))


@each_kind
def test_the_eager_step_is_torchs(kind: Kind, seed: int) -> None:
    parameters = [torch.randn(5, 3), torch.randn(())]
    steps_alike(kind, kind.eager, parameters, [torch.randn_like(x) for x in parameters])


@pytest.mark.parametrize("arithmetic", ["eager", "fused"])
@pytest.mark.parametrize("after", [0, 2])
@each_kind
def test_nothing_changes_unless_finite(kind: Kind, after: int, arithmetic: str, seed: int) -> None:
    """Neither in the first step nor after others, whatever the gradients hold."""
    parameter = nn.Parameter(torch.randn(4))
    optimizer, step = kind.ours([parameter], **kind.settings), getattr(kind, arithmetic)
    for number in range(after + 1):
        parameter.grad = torch.randn(4) if number < after else torch.tensor([0.0, torch.nan, torch.inf, 1.0])
        before = parameter.detach().clone(), copy.deepcopy(dict(optimizer.state[parameter]))
        optimizer.step_if_finite(torch.tensor(number < after), torch.tensor(0.1), torch.tensor(1.0), step)
    assert torch.equal(parameter, before[0])
    for name, value in before[1].items():
        assert torch.equal(optimizer.state[parameter][name], value)


@pytest.mark.parametrize("why", ["no compiler", "float64", "other layout", "gaps"])
@each_kind
def test_torch_does_what_c_cannot(kind: Kind, why: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, gradients = [torch.randn(5, 3)], [torch.randn(5, 3)]
    if why == "no compiler":
        monkeypatch.setattr(compiling, "unsupported_reason", lambda *_: why)
    elif why == "float64":
        parameters, gradients = ([x.double() for x in xs] for xs in (parameters, gradients))
    elif why == "other layout":
        gradients = [torch.randn(3, 5).mT]
    elif why == "gaps":
        gradients = [torch.randn(5, 6)[:, ::2]]
    assert not optimizers.is_supported(parameters, gradients, parameters)
    steps_alike(kind, kind.fused, parameters, gradients)


@pytest.mark.skipif(not BUILT, reason="no C compiler builds optimizers.c")
@each_kind
def test_a_step_is_noticed(kind: Kind, seed: int) -> None:
    """By versions: an earlier forward pass has no gradients any more, and what is kept of it is stale."""
    parameter = nn.Parameter(torch.randn(3))
    optimizer = kind.ours([parameter], **kind.settings)
    loss = (parameter * parameter.exp()).sum()
    parameter.grad = torch.randn(3)
    before = parameter._version
    optimizer.step_if_finite(~TRUE, torch.tensor(1.0), torch.tensor(1.0), kind.fused)
    assert parameter._version == before
    optimizer.step_if_finite(TRUE, torch.tensor(1.0), torch.tensor(1.0), kind.fused)
    assert parameter._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
