"""Signals that end a command or stop a run, and a watch over it: nothing ends or hangs in silence."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from ..errors import StoppedBySignal
from ..output import complain

REQUESTS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a run to stop; the second request ends it at once."""
WARNINGS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that come before a kill: from a terminal that closes, a scheduler whose time limit is near (Slurm's
`--signal`, Grid Engine's `-notify`), the kernel at a limit of CPU time. They stop a run too, and more of them
ask for nothing else."""

SILENCE = 120.0
"""Seconds without an update after which a run says what it waits for."""
SLOW = 20.0
"""Seconds after which a start is said to take long."""
NOTICED = 5.0
"""Seconds after which a part of a run that shows nothing is named."""
SAME_REQUEST = 1.0
"""Seconds after a signal within which others ask for nothing else: `timeout` signals a process and then its
group, a terminal the group, in which a parent may pass it on."""


@contextmanager
def stop_signals(stop: threading.Event, on_terminal: bool) -> Iterator[list[int]]:
    """REQUESTS and WARNINGS set the event, a second request ends the process at once. Yields what has come.

    A warning that was ignored before, as SIGHUP is under nohup, stays ignored.
    """
    asked: list[int] = []
    requested_at: float | None = None

    def ask(number: int, _frame: object) -> None:
        # It may interrupt anything, printing and locking included: so it does neither.
        nonlocal requested_at
        asked.append(number)
        stop.set()
        if number in WARNINGS:
            return
        if requested_at is None:
            requested_at = time.monotonic()
        elif time.monotonic() > requested_at + SAME_REQUEST:
            if on_terminal:
                with suppress(OSError):  # it may be gone
                    os.write(1, b"\x1b[?25h\n")  # the live panel had hidden the cursor
            os._exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    heard = [*REQUESTS, *(number for number in WARNINGS if signal.getsignal(number) != signal.SIG_IGN)]
    previous = {number: signal.signal(number, ask) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_exception() -> Iterator[None]:
    """Raise StoppedBySignal where SIGTERM or SIGHUP would end the process: a bar has hidden the cursor.

    A run that saves first has handlers of its own meanwhile. What is ignored, as by nohup, stays so.
    """

    def end(number: int, _frame: object) -> None:
        raise StoppedBySignal(number)

    on_main_thread = threading.current_thread() is threading.main_thread()
    ends = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if on_main_thread and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ends:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _beside(look: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run a function in a thread until the event that it is given is set, at the end of the block."""
    finished = threading.Event()
    thread = threading.Thread(target=look, args=(finished,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def slow(what: str, say: Callable[[str], None] = complain) -> AbstractContextManager[None]:
    """Say that something within takes long, after 20 s and whenever twice the time has passed."""

    def look(finished: threading.Event) -> None:
        seconds, waited = SLOW, 0.0
        while not finished.wait(seconds - waited):
            say(f"{what} has taken {seconds:.0f} s so far")
            waited, seconds = seconds, 2 * seconds

    return _beside(look, "slow")


def announced(what: str, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Say what goes on within, once, unless it is over in 5 s."""

    def look(finished: threading.Event) -> None:
        if not finished.wait(NOTICED):
            say(what)

    return _beside(look, "announced")


def watch(
    stop: threading.Event,
    updated_at: Callable[[], float],
    stages: Callable[[], str],
    say: Callable[[str], None],
    what: str = "update",
) -> AbstractContextManager[None]:
    """Answer a request to stop, and say what the run waits for when no update comes for long.

    `updated_at` gives the monotonic time of the last update, or of `what` is waited for; `stages` says what
    everyone is doing.
    """

    def look(finished: threading.Event) -> None:
        answered = False
        spoke = updated_at()
        while not finished.wait(min(0.5, SILENCE / 4)):
            if stop.is_set() and not answered:
                answered = True
                say("stopping after this update and a checkpoint; press Ctrl-C again to stop immediately")
            now = time.monotonic()
            if now - max(updated_at(), spoke) > SILENCE:
                spoke = now
                say(f"no {what} for {now - updated_at():.0f} s ({stages()})")

    return _beside(look, "watchdog")
