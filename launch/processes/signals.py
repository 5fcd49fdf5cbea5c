"""How a command that is asked to end does so: as by an exception, with everything closed behind it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import StoppedBySignal


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
