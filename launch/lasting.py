"""Output that may go away while a command works: a pipe's reader ends, a terminal closes, a disk is full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import IO, Any, cast

from .output import complain, discard


@contextmanager
def outlived() -> Iterator[None]:
    """Let what runs within outlive standard output and error; the loss of one is told on the other."""
    with ExitStack() as stack:
        if sys.stdout is not None:  # it was closed before we began
            stack.enter_context(redirect_stdout(cast("IO[str]", Lasting(sys.stdout))))
        if sys.stderr is not None:
            stack.enter_context(redirect_stderr(cast("IO[str]", Lasting(sys.stderr))))
        yield


class Lasting:
    """A text stream that, from its first failure on, takes what is written and shows nothing."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if not self._lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:  # ValueError: it is closed
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        if not self._lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._lost = True
        discard(self._stream)
        known = isinstance(error, OSError) and error.errno
        reason = os.strerror(known) if known else str(error).rstrip(".")
        complain(f"deltabeast: no output is shown from here on ({reason}); what is under way goes on")
