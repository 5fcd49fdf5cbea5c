"""What holds after every test that trains in its own process."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import training_envs


@pytest.fixture
def leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no thread is left, and that signals are handled as before."""
    before = set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    count = torch.get_num_threads()
    training_envs.RELEASED.clear()
    yield
    training_envs.RELEASED.set()
    torch.set_num_threads(count)
    end = time.monotonic() + 5.0
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left, left
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
