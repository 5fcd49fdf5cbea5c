"""A process beside this one, and the pipe to it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import reduction, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from .supervision import REQUESTS, WARNINGS

_OURS = {*REQUESTS, *WARNINGS} - {signal.SIGINT}
_asking = threading.Lock()
"""Of two threads that ask at once how a process ended, multiprocessing tells only one."""
_context = multiprocessing.get_context("spawn")  # a fork would copy the locks of running threads


class ChildDied(Exception):
    """A child process is gone; the message names it and says how it ended."""


class RemoteTraceback(Exception):
    """The traceback of another process, as text: the cause of what was raised here."""

    @property
    def trace(self) -> str:
        return str(self)


class Pipe:
    """Our end of a pipe to a child."""

    def __init__(self, connection: Connection, name: str, process: BaseProcess) -> None:
        self.connection, self.name, self._process = connection, name, process

    def send(self, message: Any) -> None:
        """Raises ChildDied."""
        try:
            send(self.connection, message)
        except OSError as error:
            raise self._died() from error

    def send_file(self, file: int) -> None:
        """Send a descriptor, for which the child calls `receive_file`. Raises ChildDied."""
        try:
            reduction.send_handle(self.connection, file, None)
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

    def __str__(self) -> str:
        return f"{self.name} (process {self._process.pid})"

    def _died(self) -> ChildDied:
        return ChildDied(f"{self} died: {_how_it_ended(self._process)}")


class Child(Pipe):
    """A daemon process that runs `serve(connection, *arguments)`, a function of a module.

    It ends with this one, whatever it does, and is deaf to signals that stop a run, which terminals and
    schedulers send to all of a group: whether to stop is ours to say.
    """

    def __init__(self, name: str, serve: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = _context.Pipe()
        process = _context.Process(
            target=_serve_deaf, args=(serve, theirs, pickle.dumps(arguments)), name=name, daemon=True
        )
        super().__init__(ours, name, process)
        with signals_held_back():
            process.start()
        # At our end multiprocessing tells daemons by SIGTERM, to which ours are deaf, and waits for them.
        util.Finalize(self, process.kill, exitpriority=0)
        theirs.close()  # so that the death of the process ends the connection

    def new_pipe(self) -> Pipe:
        """Return our end of another pipe, whose other end is sent as a file. Raises ChildDied, OSError."""
        ours, theirs = _context.Pipe()
        with closing(theirs), ExitStack() as undo:
            undo.callback(ours.close)
            self.send_file(theirs.fileno())
            undo.pop_all()
        return Pipe(ours, self.name, self._process)

    def check(self) -> None:
        """Raises ChildDied if the process has ended."""
        with _asking:
            ended = self._process.exitcode is not None
        if ended:
            raise self._died()

    def end(self, patience: float = 0.0) -> None:
        """Wait up to `patience` seconds for the process to end by itself, then kill it."""
        if patience:
            self._process.join(patience)
        self._process.kill()
        self._process.join()


def send(connection: Connection, message: Any) -> None:
    """Send a message by value. `connection.send` would put each tensor into a file of /dev/shm, which is
    small in containers, and leave a descriptor of it open here."""
    connection.send_bytes(pickle.dumps(message))


def receive_file(connection: Connection) -> int:
    """Return a descriptor that the parent has sent."""
    return int(reduction.recv_handle(connection))


def _serve_deaf(serve: Callable[..., None], connection: Connection, arguments: bytes) -> None:
    """Run a child."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    leave_signals_to_parent()
    serve(connection, *pickle.loads(arguments))


def _end_with_parent() -> None:
    """A pipe would tell only who reads it, which an environment that hangs, or an evaluation, does not."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def leave_signals_to_parent() -> None:
    """Let through what `signals_held_back` held back in this process, and do nothing about it.

    With handlers, since programs that an environment starts would inherit a signal that is blocked or
    ignored, and could not be told to end. SIGINT stays blocked, for them too: it is the keyboard's.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        return
    for number in _OURS:
        signal.signal(number, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)


def _nothing(_number: int, _frame: object) -> None: ...


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Hold signals back in this thread for a moment, and in a process that begins meanwhile until it lets
    them through.

    A handler of its own would come too late: importing torch takes seconds. None of ours is lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        # It holds back SIGINT and SIGTERM itself as it starts, and lets them through afterwards.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_OURS})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _how_it_ended(process: BaseProcess) -> str:
    """Describe the end of a process, for a message."""
    with _asking:
        process.join(1.0)
        code = process.exitcode
    if code is None:
        return "it closed its pipe"
    if code == -signal.SIGKILL:
        return "killed by signal 9, as systems do where memory runs out (see dmesg)"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
