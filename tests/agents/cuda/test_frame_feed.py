"""What arrives is what was seen, bit for bit, whichever way it came; and little of it crosses the bus."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltabeast.agents.cuda.frame_feed import FrameFeed
from deltabeast.envs import PROTOCOLS, make_vector_env

DEVICES = [
    torch.device("cpu"),
    pytest.param(
        torch.device("cuda"),
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    ),
]


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_games_frames_arrive_as_they_are(protocol: str, device: torch.device, seed: int) -> None:
    """Breakout loses lives fast, and FIRE must be pressed: stacks begin anew in every way there is."""
    env = make_vector_env("breakout", num_envs=5, protocol=protocol)
    generator = np.random.default_rng(seed)
    feed = FrameFeed(device)
    frame, _ = env.reset(seed=seed)
    arrived = [feed(frame)]
    seen, steps = [frame.copy()], 300
    for step in range(steps):
        actions = generator.integers(env.single_action_space.n, size=5)  # type: ignore[attr-defined]
        frame = env.reset()[0] if step == 150 else env.step(actions)[0]
        arrived.append(feed(frame))
        seen.append(frame.copy())
    env.close()
    for x, y in zip(arrived, seen, strict=True):
        np.testing.assert_array_equal(x.cpu().numpy(), y)
    whole = 4 * 84 * 84 * 5 * steps
    assert whole / 4 < feed.bytes < whole / 2


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 7, 5), (2, 4, 4), (1, 8, 8), (6,)])
def test_so_does_what_is_no_stack(shape: tuple[int, ...], device: torch.device, seed: int) -> None:
    """Rows that shift and rows that do not; sizes that no word divides; a caller that reuses its array."""
    generator = np.random.default_rng(seed)
    feed = FrameFeed(device)
    frame = generator.integers(0, 3, size=(3, *shape), dtype=np.uint8)
    arrived, seen = [], []
    for _ in range(20):
        shifts = generator.random(3) < 0.5
        if len(shape) == 3:
            frame[shifts, :-1] = frame[shifts, 1:].copy()
        frame[~shifts] = generator.integers(0, 3, size=(int((~shifts).sum()), *shape), dtype=np.uint8)
        frame[:, -1] = generator.integers(0, 3, size=frame[:, -1].shape)
        arrived.append(feed(frame))
        seen.append(frame.copy())
    for x, y in zip(arrived, seen, strict=True):
        np.testing.assert_array_equal(x.cpu().numpy(), y)


def test_floats_arrive_too() -> None:
    frame = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert torch.equal(FrameFeed(torch.device("cpu"))(frame), torch.from_numpy(frame))
