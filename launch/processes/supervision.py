"""Signals that stop a run, and a watch over it: nothing ends or hangs in silence."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENCE = 120.0
"""Seconds without an update after which a run says what it waits for."""
SAME_REQUEST = 1.0
"""Seconds after a signal within which others ask for nothing else: `timeout` signals a process and then its
group, a terminal the group, in which a parent may pass it on."""


@contextmanager
def stop_signals(stop: threading.Event, on_terminal: bool) -> Iterator[list[int]]:
    """SIGINT and SIGTERM set the event, a later one ends the process at once. Yields a list of the first."""
    asked: list[int] = []
    asked_at = 0.0

    def ask(number: int, _frame: object) -> None:
        # It may interrupt anything, printing and locking included: so it does neither.
        nonlocal asked_at
        if not asked:
            asked_at = time.monotonic()
            asked.append(number)
            stop.set()
        elif time.monotonic() > asked_at + SAME_REQUEST:
            if on_terminal:
                os.write(1, b"\x1b[?25h\n")  # the live panel had hidden the cursor
            os._exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def watch(
    stop: threading.Event,
    updated_at: Callable[[], float],
    stages: Callable[[], str],
    say: Callable[[str], None],
) -> Iterator[None]:
    """Answer a request to stop, and say what the run waits for when no update comes for long.

    `updated_at` gives the monotonic time of the last update, `stages` what everyone is doing.
    """
    finished = threading.Event()

    def look() -> None:
        answered = False
        spoke = updated_at()
        while not finished.wait(min(0.5, SILENCE / 4)):
            if stop.is_set() and not answered:
                answered = True
                say("stopping after this update and a checkpoint; once more to stop at once")
            now = time.monotonic()
            if now - max(updated_at(), spoke) > SILENCE:
                spoke = now
                say(f"no update for {now - updated_at():.0f} s ({stages()})")

    thread = threading.Thread(target=look, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
