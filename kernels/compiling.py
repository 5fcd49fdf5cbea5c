"""C for CPUs: the machine's own compiler builds a source of this folder when it is first needed.

Built for the very processor and kept in `~/.cache/deltabeast` (or `$XDG_CACHE_HOME`). What is built lets go
of Python's lock while it runs, and shares its loops among PyTorch's own threads.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
import warnings
from pathlib import Path

from torch import Tensor

# Sums keep their order and nan stays nan, but errno and traps, which nobody reads, need not be served.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC")


class CannotBuildError(Exception):
    """There is no C compiler, it does not take the source, or there is no room for what it makes."""


@functools.cache
def problem(source: str, define: str) -> str | None:
    """Why this machine cannot have `library(source, define)`, which is also told once; None if it can."""
    try:
        library(source, define)
    except CannotBuildError as error:
        _warn(f"{error}; the PyTorch kernels, which are slower, take their place")
        return str(error)
    return None


@functools.cache
def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


@functools.cache
def library(source: str, define: str) -> ctypes.CDLL:
    """The functions of a source of this folder, compiled with `-D{define}`. Raises CannotBuildError."""
    try:
        return ctypes.CDLL(str(_build(source, define, threads=True)))
    except (OSError, CannotBuildError):
        made = _build(source, define, threads=False)
    try:
        return ctypes.CDLL(str(made))
    except OSError as error:  # a folder from which nothing may be executed, for one
        raise CannotBuildError(f"cannot load C kernels: {error}") from error


def pointers(*xs: Tensor | None) -> list[ctypes.c_void_p]:
    """Arguments of a function of a library: NULL where there is no tensor, or nothing in it."""
    return [ctypes.c_void_p(x.data_ptr() if x is not None and x.numel() else None) for x in xs]


def _build(source: str, define: str, threads: bool) -> Path:
    """Compiles, unless that was done before, and gives the shared library.

    With threads it uses OpenMP but brings none along: it finds that of PyTorch, whose threads it shares, when
    it is loaded (or fails to, where PyTorch's is another's than the compiler's). Two of them would fight.
    """
    path = Path(__file__).with_name(source)
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    flags = [f"-D{define}", *FLAGS, *(["-fopenmp"] if threads else [])]
    known = [path.read_bytes(), " ".join([*compiler, *flags]).encode(), _processor().encode()]
    name = hashlib.sha256(b"\0".join(known)).hexdigest()[:32]
    folder = _cache()
    made = folder / f"{path.stem}-{name}.so"
    if made.exists():
        return made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            code, part = Path(workshop) / "code.o", Path(workshop) / made.name
            compile_ = [*compiler, *flags, "-c", str(path), "-o", str(code)]
            link = [*compiler, "-shared", str(code), "-lm", "-o", str(part)]
            for command in (compile_, link):
                subprocess.run(command, check=True, capture_output=True, text=True)
            part.replace(made)  # at once: other processes may be building the same
    except FileNotFoundError:
        raise CannotBuildError(f"no C compiler ({compiler[0]}); install one, e.g. gcc") from None
    except subprocess.CalledProcessError as error:
        told = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise CannotBuildError(f"{compiler[0]} cannot compile {path.name}: {told[0]}") from error
    except OSError as error:
        raise CannotBuildError(f"cannot write C kernels to {folder}: {error.strerror}") from error
    return made


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        raise CannotBuildError("no home directory to keep C kernels in; set XDG_CACHE_HOME")
    return Path(base) / "deltabeast"


def _processor() -> str:
    """What tells processors apart for which a compiler makes different code."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    telling = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(telling)})])
