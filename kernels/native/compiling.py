"""Build this folder's C sources with the machine's own compiler when they are first needed.

Libraries are built for the machine's processor and kept in `~/.cache/deltabeast` (or `$XDG_CACHE_HOME`),
where nobody else may write. They run without Python's lock and share loops among PyTorch's threads.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..private_cache import CannotBuildError, only_mine, private_cache

# Sums keep their order and nan stays nan; only errno and traps, which nobody reads, are given up.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC")
PROBE = "loss.c"
"""the source that every training on a CPU uses"""

announce: Callable[[str], None] = functools.partial(print, file=sys.stderr)
"""hears, once, in the main process, that libraries are being built"""


@functools.cache
def unsupported_reason(source: str, define: str | None = None) -> str | None:
    """Return why this machine cannot build `library(source, define)`, warning once; None if it can."""
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
def library(source: str, define: str | None = None) -> ctypes.CDLL:
    """Load a source of this folder, compiled with `-D{define}` if there is one. Raises CannotBuildError."""
    try:
        return ctypes.CDLL(str(_build(source, define, threads=True)))
    except (OSError, CannotBuildError):
        path = _build(source, define, threads=False)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # a folder from which nothing may be executed, for one
        raise CannotBuildError(f"cannot load C kernels: {error}") from error


def is_watched() -> bool:
    """Return whether a compiler or a dispatch mode watches PyTorch's operations, and would miss C that is
    called directly."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def call(
    source: str, define: str | None, name: str, numbers: tuple[int | float, ...], *tensors: Tensor | None
) -> None:
    """Call a function of `library(source, define)`: int64_t for an int, float for a float, then pointers."""
    _function(source, define, name, tuple(map(type, numbers)), len(tensors))(*numbers, *addresses(*tensors))


def addresses(*xs: Tensor | None) -> list[int | None]:
    """Make arguments for a function with `argtypes`; None, which is NULL, for an empty tensor, too."""
    return [x.data_ptr() if x is not None and x.numel() else None for x in xs]


@functools.cache
def _function(source: str, define: str | None, name: str, numbers: tuple[type, ...], tensors: int) -> Any:
    kinds = [ctypes.c_float if kind is float else ctypes.c_int64 for kind in numbers]
    return typed(library(source, define), name, *kinds, *[ctypes.c_void_p] * tensors)


def typed(loaded: ctypes.CDLL, name: str, *argtypes: Any) -> Any:
    """Return a library's function of such arguments, which returns nothing."""
    function = getattr(loaded, name)
    function.argtypes, function.restype = argtypes, None
    return function


@functools.cache
def identity() -> str:
    """Return a digest of all that decides what the libraries compute, or "no C" where there can be none."""
    if unsupported_reason(PROBE) is not None:
        return "no C"
    sources = sorted(file for file in Path(__file__).parent.iterdir() if file.suffix in (".c", ".h"))
    command = os.fsencode(" ".join([*_compiler(), *FLAGS]))
    return _digest(*(file.read_bytes() for file in sources), command, _processor().encode())[:16]


def _build(source: str, define: str | None, threads: bool) -> Path:
    """Return the shared library, compiled unless the cache has it.

    With threads it uses OpenMP but is not linked to a runtime: when loaded it finds PyTorch's and shares its
    threads, or fails if that is not the compiler's own. Two runtimes would compete for the cores.
    """
    path = Path(__file__).with_name(source)
    texts = [path.read_bytes(), *(header.read_bytes() for header in sorted(path.parent.glob("*.h")))]
    compiler = _compiler()
    flags = [*([f"-D{define}"] if define else []), *FLAGS, *(["-fopenmp"] if threads else [])]
    command = " ".join([*compiler, *flags])
    name = f"{path.stem}-{_digest(*texts, os.fsencode(command), _processor().encode())}"
    folder = private_cache()
    try:
        if cached := _find(folder, name):
            return cached
        _announce_once()
        with _alone(folder):
            return _find(folder, name) or _compile(path, compiler, flags, folder / name)
    except OSError as error:
        raise CannotBuildError(f"cannot write C kernels to {folder}: {error.strerror}") from error


def _compiler() -> list[str]:
    """Return $CC as words. Raises CannotBuildError."""
    try:
        return shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise CannotBuildError(f"CC={os.environ['CC']} is no command: {error}") from error


def _compile(path: Path, compiler: Sequence[str], flags: Sequence[str], target: Path) -> Path:
    """Compile a source; return the library, whose path is `target` with its digest behind. Raises OSError."""
    with tempfile.TemporaryDirectory(dir=target.parent) as workshop:
        code, part = Path(workshop) / "code.o", Path(workshop) / target.name
        compile_ = [*compiler, *flags, "-c", str(path), "-o", str(code)]
        link = [*compiler, "-shared", str(code), "-lm", "-o", str(part)]
        for step in (compile_, link):
            _run(step, path.name, workshop)
        part.chmod(0o700)
        # atomic, because where there are no locks other processes may be building the same
        return part.replace(target.with_name(f"{target.name}-{_digest(part.read_bytes())}.so"))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process build at a time: the others wait, and find what it built."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@functools.cache
def _announce_once() -> None:
    if multiprocessing.parent_process() is None:  # what runs beside it waits for the same
        announce("building C kernels for this processor, once: it takes up to a minute")


def _run(command: list[str], source: str, workshop: str) -> None:
    """Run one step of compiling a source, whose temporary files lie in the workshop."""
    compiler = command[0]
    try:
        environment = {**os.environ, "TMPDIR": workshop}
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", env=environment)
    except OSError as error:
        why = f"no C compiler ({compiler}: {error.strerror}); install one, e.g. gcc"
        raise CannotBuildError(why) from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        reason = next((line for line in lines if "error:" in line), lines[0])
        raise CannotBuildError(f"{compiler} cannot compile {source}: {reason}") from error


def _find(folder: Path, name: str) -> Path | None:
    """Return an intact library built earlier; its name ends in its digest, as a damaged one could crash."""
    for path in folder.glob(f"{name}-*.so"):
        try:
            if only_mine(path) and path.stem == f"{name}-{_digest(path.read_bytes())}":
                return path
        except FileNotFoundError:  # another process removed it first
            continue
        _warn(f"{path} was damaged, or others could write to it; it is built anew")
        path.unlink(missing_ok=True)
    return None


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _processor() -> str:
    """Describe the processor as far as it changes what a compiler generates."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    telling = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(telling)})])
