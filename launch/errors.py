"""Errors that a person reads as one line."""

import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..agents import files
from .foreign import beginning, without_passwords


class UsageError(ValueError):
    """Wrong input: what was wrong and what would be right. Exit code 2, nothing written."""


@contextmanager
def wrong_input() -> Iterator[None]:
    """Raise UsageError for whatever is wrong with the options that are looked at within."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error


def require(
    config: object, *names: str, least: int, most: int | None = None, below: int | None = None, why: str = ""
) -> None:
    """Raise UsageError if an option, or one of its values, is less than `least`, more than `most`, not less
    than `below`, or not finite; those that are None are not given. `why` ends the message."""
    must = f"be at least {least}" if least else "not be negative"
    if most is not None or below is not None:
        must = f"be from {least} to {f'less than {below}' if most is None else most}"
    must += f": {why}" if why else ""
    last = math.inf if most is None else most
    end = math.inf if below is None else below
    _require(config, names, lambda value: least <= value <= last and value < end, must)


def require_positive(config: object, *names: str) -> None:
    """Raise UsageError if an option is not positive and finite; those that are None are not given."""
    _require(config, names, lambda value: 0 < value < math.inf, "be positive")


def _require(config: object, names: Iterable[str], holds: Callable[[float], bool], must: str) -> None:
    for name in names:
        given = getattr(config, name)
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None and not holds(value):
                must = must if math.isfinite(value) else "be finite"
                raise UsageError(f"--{name.replace('_', '-')} {value}; it must {must}")


class RunError(RuntimeError):
    """A run had to stop; its cause is attached. Exit code 1."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise RunError if what is written within to a folder cannot be."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {files.why(error)}") from error


class Incomplete(RunError):
    """A result was made of less than was asked for, and saved. Exit code 1."""

    def __init__(self, message: str, saved: Path) -> None:
        super().__init__(message)
        self.saved = saved


class StoppedBySignal(BaseException):
    """A run was asked to stop and did, with a checkpoint. The command then ends as by that signal.

    As KeyboardInterrupt it is no Exception: a rescue from the code of others must not take it for theirs.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


def trace_of(error: BaseException) -> str:
    """Return the traceback that whoever looks for the cause needs; empty where the error says all."""
    trace = getattr(error, "trace", None)  # an environment's own, or another process's
    return trace if isinstance(trace, str) else "".join(traceback.format_exception(error)).rstrip()


def one_line(error: BaseException, most: int = 200) -> str:
    """Return what an error of someone else's says first, in at most that many characters; else what it is."""
    text = without_passwords(str(error))  # before it is cut
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return beginning(line, most)
