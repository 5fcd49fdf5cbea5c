"""Unexpected exceptions of a command: one line that names the remedy, and an exit code."""

from __future__ import annotations

import errno
import os

from ..envs import EnvironmentFailed
from .errors import trace_of
from .foreign import beginning
from .processes.child import ChildDied
from .processes.machine import lacks_memory
from .training.engine import ActorError

_REMEDIES = {
    errno.EACCES: "make it readable, or give another",
    errno.EPERM: "make it readable, or give another",
    errno.ENAMETOOLONG: "give a shorter one",
    errno.ELOOP: "its links lead in a circle",
    errno.ENOSPC: "free some space, or give another place",
    errno.EDQUOT: "free some of your quota, or give another place",
    errno.EROFS: "give a place that can be written",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or give fewer --num-workers, or --threads",
    errno.ENFILE: "the machine has no more open files to give; end other programs",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or give fewer --num-workers, or --threads",
    errno.ENOMEM: "give it less to do, or more memory",
}


def explain(error: Exception) -> tuple[str, str, int]:
    """Return a traceback, where somebody has to look for the cause, a line, and the exit code."""
    if isinstance(error, EnvironmentFailed):
        return error.trace, str(error), 1
    if isinstance(error, ActorError):
        return trace_of(error.__cause__) if error.__cause__ else "", str(error), 1
    if isinstance(error, ChildDied):
        return "", str(error), 1
    if lacks_memory(error):
        return "", "out of memory; give it less to do, or more memory", 1
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return "", "no folder for temporary files can be written; set TMPDIR to one that can", 1
    if isinstance(error, OSError) and error.errno:
        return "", _of_the_machine(error), 2 if error.filename else 1
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "", f"{error}; {_REMEDIES[errno.EAGAIN]}", 1
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        return "", f"{error}; give another path", 2
    message = f"{type(error).__name__}: {error}"
    return trace_of(error), f"{message}; the lines above say where, report them if that code is not yours", 1


def _of_the_machine(error: OSError) -> str:
    """Say what an operating system refused: of which file, why, and what would help."""
    assert error.errno is not None
    what = beginning(os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "")
    remedy = _REMEDIES.get(error.errno)
    return ": ".join(filter(None, (what, os.strerror(error.errno)))) + (f"; {remedy}" if remedy else "")
