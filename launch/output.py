"""What is printed. Every line passes through `foreign`, so that nothing in it can forge another."""

from __future__ import annotations

import codecs
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import IO, TYPE_CHECKING, Any, cast

from .foreign import terminal

if TYPE_CHECKING:  # it takes a while
    from rich.console import Console

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PLAIN = {"·": "-", "±": "+-", "−": "-", "–": "-", "→": "->", "←": "<-", "×": "x", "β": "beta", "…": "..."}


def say(console: Console, text: str) -> None:
    """Print a line beside a panel or bar; in a log it is one line, however narrow the console is."""
    console.print(terminal(text), soft_wrap=True, markup=False, highlight=False, emoji=False)


def tell(*lines: str) -> None:
    """Print lines to standard output."""
    for line in lines:
        print(terminal(line), flush=True)


def complain(text: str) -> None:
    """Print a line to standard error, if that is still there."""
    try:
        print(terminal(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        discard(sys.stderr)


@contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Print each warning in one line; one of a class of our own says all, wherever it was noticed."""
    ours = f"{__package__.partition('.')[0]}."
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], file: str, line: int, *_: object) -> None:
        if category.__module__.startswith(ours):
            complain(f"deltabeast: warning: {message}")
        else:
            text = _COLOUR.sub("", str(message))  # Gymnasium's are yellow
            complain(warnings.formatwarning(text, category, file, line, line="").rstrip())

    warnings.showwarning = cast(Any, show)
    try:
        yield
    finally:
        warnings.showwarning = shown


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
        number = isinstance(error, OSError) and error.errno
        reason = os.strerror(number) if number else str(error).rstrip(".")
        complain(f"deltabeast: no output is shown from here on ({reason}); what is under way goes on")


def discard(stream: IO[str] | None) -> None:
    """Send what waits in a stream's buffer, and what comes later, nowhere: a flush at exit would fail."""
    with suppress(OSError, ValueError, AttributeError):  # closed, no file, or not there at all
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, cast("IO[str]", stream).fileno())
        os.close(nowhere)


def accept_any_text() -> None:
    """Let both streams take every character, the nearest there is where their encoding lacks one."""
    codecs.register_error("nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # something else in its place, or gone
            cast("Any", stream).reconfigure(errors="nearest")


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Replace what cannot be encoded: `codecs.register_error` says how."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    plain = "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text)
    return plain, error.end


def first_sentence(doc: str | None) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((doc or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].rstrip(".")
