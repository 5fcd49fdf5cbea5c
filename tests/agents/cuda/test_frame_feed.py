"""What arrives is what was seen, bit for bit, whichever way it came; and little of it crosses the bus."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np
import pytest
import torch

from deltabeast.agents.cuda.frame_feed import FrameFeed
from deltabeast.agents.cuda.page_lock import page_locked
from deltabeast.envs import PROTOCOLS, make_vector_env
from deltabeast.launch.processes.env_processes import process_envs
from deltabeast.launch.processes.env_servers import EnvServers

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


class _Driver:
    """CUDA's two functions, for as many bytes as there are."""

    def __init__(self, answer: int) -> None:
        self.answer, self.locked = answer, {}

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        self.locked[pointer] = size
        return self.answer

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.locked[pointer]
        return 0


@pytest.mark.parametrize("answer", [0, 801])
def test_memory_is_locked_as_long_as_it_is_read(answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a driver that can, or cannot, and says so again to the next kernel."""
    driver = _Driver(answer)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    pending: list[int] = []

    def next_kernel(*_: object, **__: object) -> None:
        pending.append(answer)
        raise RuntimeError("CUDA error: operation not supported")

    monkeypatch.setattr(torch, "zeros", next_kernel)
    array = np.zeros((3, 4), np.float32)
    with page_locked(array, torch.device("cuda")) as locked:
        assert locked == (answer == 0) and driver.locked == {array.ctypes.data: array.nbytes}
        assert pending == ([] if locked else [answer])
    assert bool(driver.locked) != locked


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_reads_locked_memory_by_itself(seed: int) -> None:
    """Of environments in processes: memory that others map, too. All of it, whole, and none once unlocked."""
    device = torch.device("cuda")
    env = partial(make_vector_env, "breakout", num_threads=1)
    (games,) = process_envs(EnvServers(env, 6, 2), copy=False)
    with closing(games):
        feed, (seen, _) = FrameFeed(device), games.reset(seed=seed)
        with page_locked(games.observations, device) as locked:
            assert locked and torch.from_numpy(seen).is_pinned()
            for step in range(50):
                arrived = feed(seen)
                torch.cuda.current_stream().synchronize()
                np.testing.assert_array_equal(arrived.cpu().numpy(), seen)
                seen = games.step(np.full(6, step % 4))[0]
            assert feed.bytes == 50 * seen.nbytes
        assert not torch.from_numpy(seen).is_pinned()
        np.testing.assert_array_equal(feed(seen).cpu().numpy(), seen)
