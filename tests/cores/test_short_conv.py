"""Short convolutions, against PyTorch's over each episode by itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from fastweight_helpers import RESET_PATTERNS, integer, make_reset
from torch import Tensor

from deltabeast.cores import make_core
from deltabeast.cores.short_conv import MAX_STEPS, ShortConvolution


def by_episode(layer: ShortConvolution, x: Tensor, last: Tensor, reset: Tensor) -> Tensor:
    """The outputs, each row's episodes convolved one by one, the first after what was before it."""
    channels = layer.weight.shape[1]
    kernel = layer.weight.mT.flip(-1).unsqueeze(1)
    outputs = torch.empty_like(x)
    for b in range(x.shape[1]):
        starts = [0, *(t for t in range(1, len(x)) if reset[t, b]), len(x)]
        for start, stop in pairwise(starts):
            before = last[b] if start == 0 and not reset[0, b] else torch.zeros_like(last[b])
            padded = torch.cat((before, x[start:stop, b])).mT.unsqueeze(0)
            outputs[start:stop, b] = F.silu(F.conv1d(padded, kernel, groups=channels))[0].mT
    return outputs


@pytest.mark.parametrize("pattern", RESET_PATTERNS)
@pytest.mark.parametrize("steps", [1, 2, 3, 9])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_episode_is_convolved_by_itself(size: int, steps: int, pattern: str, seed: int) -> None:
    rows, channels = integer(1, 4), integer(1, 5)
    layer = ShortConvolution(channels, size).double()
    x = torch.randn(steps, rows, channels, dtype=torch.float64)
    last, reset = torch.randn(rows, size - 1, channels, dtype=torch.float64), make_reset(pattern, steps, rows)
    y, after = layer(x, last, reset)
    torch.testing.assert_close(y, by_episode(layer, x, last, reset), rtol=1e-12, atol=1e-12)
    assert after.shape == last.shape
    # An unroll in two parts is the same.
    more, resets = torch.randn(3, rows, channels, dtype=torch.float64), make_reset("random", 3, rows)
    whole, ends = layer(torch.cat((x, more)), last, torch.cat((reset, resets)))
    rest, end = layer(more, after, resets)
    torch.testing.assert_close(whole, torch.cat((y, rest)), rtol=1e-12, atol=1e-12)
    assert torch.equal(end, ends)


def test_a_broken_episode_ends_with_itself() -> None:
    layer, x = ShortConvolution(2, 4), torch.randn(5, 2, 2)
    last, reset = torch.full((2, 3, 2), float("nan")), torch.zeros(5, 2, dtype=torch.bool)
    reset[0, 0] = reset[2, 1] = True
    x[1, 1] = float("inf")
    y, after = layer(x.requires_grad_(), last, reset)
    assert y[:, 0].isfinite().all() and y[2:, 1].isfinite().all() and not y[:2, 1].isfinite().any()
    assert after.isfinite().all()
    (gradient,) = torch.autograd.grad(y[2:].sum(), x)
    assert gradient[:, 0].isfinite().all() and gradient[2:, 1].isfinite().all() and gradient.any()


@pytest.mark.parametrize("pattern", RESET_PATTERNS)
@pytest.mark.parametrize("steps", [1, 5, 12])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_window_alone(size: int, steps: int, pattern: str, seed: int) -> None:
    """Feedforward with a convolution reads the last steps of its episode, given those before the first."""
    rows, width = integer(1, 4), integer(1, 5)
    core = make_core("feedforward", width, short_conv=size).double()
    ((_, kernel),) = core.named_parameters()
    x, reset = torch.randn(steps, rows, width).double(), make_reset(pattern, steps, rows)
    (last,) = state = tuple(torch.randn_like(part) for part in core.initial_state(rows))
    y, (after,) = core.unroll(x, state, reset)
    for b in range(rows):
        seen = list(last[b, 0])
        for t in range(steps):
            if reset[t, b]:
                seen = [torch.zeros(width).double()] * (size - 1)
            seen.append(x[t, b])
            want = F.silu(sum(kernel[age] * seen[-1 - age] for age in range(size)))
            torch.testing.assert_close(y[t, b], want, rtol=1e-12, atol=1e-12)
        assert torch.equal(after[b, 0], torch.stack([*seen, x[0, b]])[-size:-1])


def test_feedforward_without_a_window_is_what_it_was() -> None:
    core, x = make_core("feedforward", 3), torch.randn(2, 4, 3)
    y, state = core.unroll(x, (), torch.zeros(2, 4, dtype=torch.bool))
    assert y is x and state == () == core.initial_state(4) and not list(core.parameters())
    for short_conv in (-1, MAX_STEPS + 1):
        said = f"short_conv is {short_conv}; give 1 to {MAX_STEPS} steps, or 0 for none"
        with pytest.raises(ValueError, match=said):
            make_core("feedforward", 3, short_conv=short_conv)
    make_core("feedforward", 3, short_conv=MAX_STEPS)
