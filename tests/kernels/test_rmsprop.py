"""RMSProp's step in C is torch's but for the rounding of a root, and left to torch where it cannot be."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from deltabeast.agents.cpu.optimizer import fused_rmsprop_if_finite
from deltabeast.agents.rmsprop import RMSprop
from deltabeast.kernels.native import compiling, rmsprop

SETTINGS = {"lr": 2**-8, "alpha": 1 - 2**-5, "eps": 0.01}
SCALE = 0.375
"""rate, decay and scale are float32's, also where all else is float64"""
TRUE = torch.tensor(True)
BUILT = compiling.unsupported_reason("rmsprop.c") is None


def channels_last(*shape: int) -> Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def steps_alike(parameters: list[Tensor], gradients: list[Tensor]) -> list[nn.Parameter]:
    """Compare three steps with torch's, and return the parameters after them."""
    ours = [nn.Parameter(x.clone()) for x in parameters]
    theirs = copy.deepcopy(ours)
    optimizer, expected = RMSprop(ours, **SETTINGS), torch.optim.RMSprop(theirs, **SETTINGS)
    for scale in (1.0, 1e-4, 1e6):
        for p, q, gradient in zip(ours, theirs, gradients, strict=True):
            p.grad, q.grad = gradient * scale, gradient * scale * SCALE
        optimizer.step_if_finite(
            TRUE, torch.tensor(SETTINGS["lr"]), torch.tensor(SCALE), fused_rmsprop_if_finite
        )
        expected.step()
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=3e-7, atol=1e-8)
            for name in ("square_avg", "step"):
                assert torch.equal(optimizer.state[p][name], expected.state[q][name])
    return ours


@pytest.mark.skipif(not BUILT, reason="no C compiler builds rmsprop.c")
@pytest.mark.parametrize("threads", [1, 2])
def test_c_does_as_torch(threads: int, seed: int) -> None:
    """Sizes around a vector's and the one from which threads share the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shapes: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (8, 33), (257, 259), (3, 2**16 // 3)]
        parameters = [*map(torch.randn, shapes), channels_last(8, 3, 4, 4)]
        gradients = [torch.randn_like(x) for x in parameters]
        squares = [torch.zeros_like(x) for x in parameters]
        assert rmsprop.is_supported(parameters, gradients, squares)
        after = steps_alike(parameters, gradients)
    finally:
        torch.set_num_threads(before)
    assert all((x != y).all() for x, y in zip(parameters, after, strict=True))


@pytest.mark.parametrize("why", ["no compiler", "float64", "other layout", "gaps"])
def test_torch_does_what_c_cannot(why: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, gradients = [torch.randn(5, 3)], [torch.randn(5, 3)]
    if why == "no compiler":
        monkeypatch.setattr(compiling, "unsupported_reason", lambda *_: why)
    elif why == "float64":
        parameters, gradients = ([x.double() for x in xs] for xs in (parameters, gradients))
    elif why == "other layout":
        gradients = [torch.randn(3, 5).mT]
    elif why == "gaps":
        gradients = [torch.randn(5, 6)[:, ::2]]
    assert not rmsprop.is_supported(parameters, gradients, parameters)
    steps_alike(parameters, gradients)


@pytest.mark.skipif(not BUILT, reason="no C compiler builds rmsprop.c")
def test_a_step_is_noticed(seed: int) -> None:
    """By versions: an earlier forward pass has no gradients any more, and what is kept of it is stale."""
    parameter = nn.Parameter(torch.randn(3))
    optimizer = RMSprop([parameter], **SETTINGS)
    loss = (parameter * parameter.exp()).sum()
    parameter.grad = torch.randn(3)
    before = parameter._version
    optimizer.step_if_finite(~TRUE, torch.tensor(1.0), torch.tensor(1.0), fused_rmsprop_if_finite)
    assert parameter._version == before
    optimizer.step_if_finite(TRUE, torch.tensor(1.0), torch.tensor(1.0), fused_rmsprop_if_finite)
    assert parameter._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
