"""Signals that stop a run: which are heard, and which end it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from deltabeast.launch.errors import StoppedBySignal
from deltabeast.launch.processes import supervision
from deltabeast.launch.processes.supervision import (
    REQUESTS,
    SAME_REQUEST,
    WARNINGS,
    announced,
    ended_by_exception,
    slow,
    stop_signals,
)

EACH = pytest.mark.parametrize("number", [*REQUESTS, *WARNINGS])


@pytest.fixture(autouse=True)
def as_they_are_at_first() -> Iterator[None]:
    """A shell's background job, or nohup, may have told the tests to ignore some."""
    before = {number: signal.getsignal(number) for number in (*REQUESTS, *WARNINGS)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Clock(SimpleNamespace):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Exit(BaseException):
    pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock to set; and an end at once is an exception, which says how."""

    def leave(code: int) -> None:
        raise Exit(code)

    clock = Clock()
    monkeypatch.setattr(supervision, "time", clock)
    monkeypatch.setattr(os, "_exit", leave)
    return clock


@EACH
def test_each_of_them_asks_to_stop_and_is_as_before_afterwards(number: signal.Signals) -> None:
    stop = threading.Event()
    with stop_signals(stop, on_terminal=False) as asked:
        assert not stop.is_set() and not asked
        os.kill(os.getpid(), number)
        assert stop.is_set() and asked == [number]
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize("number", WARNINGS)
def test_what_was_ignored_stays_ignored(number: signal.Signals) -> None:
    stop = threading.Event()
    signal.signal(number, signal.SIG_IGN)
    with stop_signals(stop, on_terminal=False) as asked:
        os.kill(os.getpid(), number)
        assert not stop.is_set() and not asked
    assert signal.getsignal(number) == signal.SIG_IGN


def test_a_command_that_is_ended_by_them_is_a_run_meanwhile() -> None:
    stop = threading.Event()
    with ended_by_exception():
        with stop_signals(stop, on_terminal=False) as asked:
            os.kill(os.getpid(), signal.SIGHUP)
        assert asked == [signal.SIGHUP]
        with pytest.raises(StoppedBySignal):
            os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize("first", [*REQUESTS, *WARNINGS])
@pytest.mark.parametrize("second", [*REQUESTS, *WARNINGS])
def test_the_second_request_ends_at_once_and_no_warning_does(
    first: signal.Signals, second: signal.Signals, clock: Clock
) -> None:
    """A scheduler warns, then asks: the checkpoint that the warning began must not be cut short."""
    with stop_signals(threading.Event(), on_terminal=False) as asked:
        os.kill(os.getpid(), first)
        clock.now += SAME_REQUEST
        os.kill(os.getpid(), second)
        assert asked == [first, second], "so soon after the first it is the same request"
        clock.now += 0.1
        if first in WARNINGS and second in WARNINGS:
            os.kill(os.getpid(), second)
        elif second in REQUESTS and first in WARNINGS:
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), second)
            clock.now += SAME_REQUEST
            with pytest.raises(Exit, match=f"^{128 + second}$"):
                os.kill(os.getpid(), second)
        else:
            number = second if second in REQUESTS else first
            with pytest.raises(Exit, match=f"^{128 + number}$"):
                os.kill(os.getpid(), number)


def test_a_second_request_ends_where_the_terminal_is_gone(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_descriptor: int, _bytes: bytes) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", write)
    with stop_signals(threading.Event(), on_terminal=True):
        os.kill(os.getpid(), signal.SIGTERM)
        clock.now += 2 * SAME_REQUEST
        with pytest.raises(Exit):
            os.kill(os.getpid(), signal.SIGTERM)


def test_what_takes_long_says_so_and_what_does_not_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    spoken = threading.Semaphore(0)

    def say(text: str) -> None:
        said.append(text)
        spoken.release()

    with slow("nothing", say):
        pass
    monkeypatch.setattr(supervision, "SLOW", 0.01)
    with slow("the first reset", say):
        assert all(spoken.acquire(timeout=30) for _ in range(2))
    assert said[0] == "the first reset has taken 0 s so far" and len(said) >= 2
    assert not [thread for thread in threading.enumerate() if thread.name == "slow"]


def test_what_is_noticed_is_announced_once_and_what_is_not_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    spoken = threading.Semaphore(0)

    def say(text: str) -> None:
        said.append(text)
        spoken.release()

    with announced("nothing", say):
        pass
    monkeypatch.setattr(supervision, "NOTICED", 0.01)
    with announced("reading", say):
        assert spoken.acquire(timeout=30)
        assert not spoken.acquire(timeout=0.1)
    assert said == ["reading"]
    assert not [thread for thread in threading.enumerate() if thread.name == "announced"]
