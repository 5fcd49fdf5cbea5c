"""A process beside this one, and the pipe to it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

_context = multiprocessing.get_context("spawn")  # a fork would copy the locks of running threads


class ChildDied(Exception):
    """A child process is gone; the message names it and says how it ended."""


class RemoteTraceback(Exception):
    """The traceback of another process, as text: the cause of what was raised here."""


class Child:
    """A daemon process that runs `serve(connection, *arguments)`, a function of a module.

    It never hears SIGINT, which a terminal sends to all of a group: whether to stop is ours to say.
    """

    def __init__(self, name: str, serve: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        self.connection, theirs = _context.Pipe()
        self._process = _context.Process(target=serve, args=(theirs, *arguments), name=name, daemon=True)
        with _interrupts_held():
            self._process.start()
        theirs.close()  # so that the death of the process ends the connection

    def send(self, message: Any) -> None:
        """Raises ChildDied."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._died() from error

    def receive(self) -> Any:
        """Wait for the next message. Raises ChildDied."""
        try:
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error

    def close(self) -> None:
        """Close the pipe, which tells a process that waits for messages to end."""
        self.connection.close()

    def end(self, patience: float = 0.0) -> None:
        """Wait up to `patience` seconds for the process to end by itself, then kill it."""
        if patience:
            self._process.join(patience)
        self._process.kill()
        self._process.join()

    def _died(self) -> ChildDied:
        return ChildDied(f"{self.name} {_how_it_ended(self._process)}")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold SIGINT back in this thread for a moment, and for good in a process that begins meanwhile.

    A handler of its own would come too late: importing torch takes seconds. None of ours is lost.
    """
    resource_tracker.ensure_running()  # its own start would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _how_it_ended(process: BaseProcess) -> str:
    """Describe the end of a process, for a message."""
    process.join(1.0)
    code = process.exitcode
    how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return f"(process {process.pid}) died: {how}"
