"""The rules in C for CPUs: `native.c`, which the machine's own compiler builds when it is first needed.

Built for the very processor, once a head size, and kept in `~/.cache/deltabeast` (or `$XDG_CACHE_HOME`). Its
functions let go of Python's lock, and share their heads among PyTorch's own threads.
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
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("native.c")
LANES = 16
"""Numbers in a block of a row, as in the source."""
MAX_SIZE = 128
"""Rows and columns of fast weights: a few matrices of a head fit a processor's first two caches."""
# Sums keep their order and nan stays nan, but errno and traps, which nobody reads, need not be served.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC")


def problem(rule: str, inputs: tuple[Tensor, ...]) -> str | None:
    """Why the C kernels cannot take these inputs, reset last; None if they can."""
    *floats, reset = inputs
    if rule == "lstm":
        return "the C kernels have no LSTM: its matrix products are torch's"
    if reset.device.type != "cpu":
        return f"the C kernels need CPU tensors, not {reset.device.type} ones"
    dtypes = {x.dtype for x in floats} - {torch.float32}
    if dtypes:
        return f"the C kernels compute in float32, not {dtypes.pop()}"
    widest = max(size for x in floats if x.dim() == 4 for size in x.shape[3:])
    if widest > MAX_SIZE:
        return f"the C kernels take heads up to {MAX_SIZE} wide, not {widest}"
    return _cannot_build()


class _Strided(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), *((name, ctypes.c_int64) for name in "tbh")]


class _Span(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("T", "B", "H", "V", "K", "threads")),
        ("reset", ctypes.c_void_p),
    ]


def delta_forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor, *outputs: Tensor
) -> None:
    """Fills outputs: y, W after the last step, and unless it is empty the error."""
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta))
    _call("delta_forward", W, reset, *strided, *_pointers(W, *outputs))


def delta_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    W: Tensor,
    reset: Tensor,
    error: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    *grads: Tensor,
) -> None:
    """Fills grads: of q, k, v, beta and W."""
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta))
    _call("delta_backward", W, reset, *strided, *_pointers(W, error, dy, dW_T, *grads))


def delta_rnn_forward(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor, *outputs: Tensor
) -> None:
    """Fills outputs: y, R after the last step, and unless they are empty error and p."""
    strided = (_strided(z), _strided(k), _strided(v), _strided(beta))
    _call("delta_rnn_forward", R, reset, *strided, *_pointers(R, y0, *outputs[:-1]))


def delta_rnn_backward(
    k: Tensor,
    beta: Tensor,
    R: Tensor,
    reset: Tensor,
    error: Tensor,
    p: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dR_T: Tensor | None,
    *grads: Tensor,
) -> None:
    """Fills grads: of z, k, v, beta, R and y0."""
    past = _new_past(R, len(reset))
    pointers = _pointers(R, error, p, dy, dR_T, *grads, past)
    _call("delta_rnn_backward", R, reset, _strided(k), _strided(beta), *pointers)


def recurrent_delta_forward(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *others: Tensor) -> None:
    """Fills the outputs, which follow Rq, Rk, Rv, rb, W, y0 and reset: y, W after the last step, and unless
    they are empty g, the q, k, beta used, and error."""
    *slow, W, y0, reset = others[:7]
    strided = (_strided(q), _strided(k), _strided(v), _strided(beta))
    _call("recurrent_delta_forward", W, reset, *strided, *_pointers(*slow, W, y0, *others[7:-1]))


def recurrent_delta_backward(
    Rq: Tensor,
    Rk: Tensor,
    Rv: Tensor,
    rb: Tensor,
    W: Tensor,
    reset: Tensor,
    g: Tensor,
    q_used: Tensor,
    k_used: Tensor,
    beta_used: Tensor,
    error: Tensor,
    kept: Tensor,
    dy: Tensor | None,
    dW_T: Tensor | None,
    *grads: Tensor,
) -> None:
    """Fills grads: of q, k, v, beta, W and y0."""
    past = _new_past(W, len(reset))
    saved = (Rq, Rk, Rv, rb, W, g, q_used, k_used, beta_used, error)
    _call("recurrent_delta_backward", W, reset, *_pointers(*saved, dy, dW_T, *grads, past))


def _blocks(size: int) -> int:
    return (size + LANES - 1) // LANES


def _new_past(W: Tensor, steps: int) -> Tensor:
    """Room for one head's fast weights before every step, for each thread."""
    size = LANES * _blocks(max(W.shape[2:]))
    return W.new_empty(_threads(W, steps), steps, size, size)


def _threads(W: Tensor, steps: int) -> int:
    """Waking another thread costs as much as a small span."""
    return torch.get_num_threads() if steps * W.numel() > 1 << 19 else 1


def _strided(x: Tensor | None) -> _Strided:
    return _Strided() if x is None else _Strided(x.data_ptr(), *x.stride()[:3])


def _pointers(*xs: Tensor | None) -> list[ctypes.c_void_p]:
    """NULL where there is none, or nothing to keep."""
    return [ctypes.c_void_p(x.data_ptr() if x is not None and x.numel() else None) for x in xs]


def _call(name: str, W: Tensor, reset: Tensor, *arguments: Any) -> None:
    B, H, V, K = W.shape
    span = _Span(len(reset), B, H, V, K, _threads(W, len(reset)), reset.data_ptr())
    getattr(_library(_blocks(max(V, K))), name)(ctypes.byref(span), *arguments)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _cannot_build() -> str | None:
    return _tried()


@functools.cache
def _tried() -> str | None:
    """Why there are no C kernels on this machine, which is also told once; tried with the published size."""
    try:
        _library(_blocks(32))
    except CannotBuildError as error:
        warnings.warn(f"{error}; the PyTorch kernels, which are slower, take their place", stacklevel=2)
        return str(error)
    return None


@functools.cache
def _library(blocks: int) -> ctypes.CDLL:
    """The kernels for rows of that many blocks. Raises CannotBuildError."""
    try:
        return ctypes.CDLL(str(_build(blocks, threads=True)))
    except (OSError, CannotBuildError):
        library = _build(blocks, threads=False)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:  # a folder from which nothing may be executed, for one
        raise CannotBuildError(f"cannot load C kernels: {error}") from error


class CannotBuildError(Exception):
    """There is no C compiler, it does not take the source, or there is no room for what it makes."""


def _build(blocks: int, threads: bool) -> Path:
    """Compiles, unless that was done before, and gives the shared library.

    With threads it uses OpenMP but brings none along: it finds that of PyTorch, whose threads it shares, when
    it is loaded (or fails to, where PyTorch's is another's than the compiler's). Two of them would fight.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    flags = [f"-DN={blocks}", *FLAGS, *(["-fopenmp"] if threads else [])]
    known = [SOURCE.read_bytes(), " ".join([*compiler, *flags]).encode(), _processor().encode()]
    name = hashlib.sha256(b"\0".join(known)).hexdigest()[:32]
    folder = _cache()
    library = folder / f"native-{name}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            code, part = Path(made) / "native.o", Path(made) / library.name
            compile_ = [*compiler, *flags, "-c", str(SOURCE), "-o", str(code)]
            link = [*compiler, "-shared", str(code), "-lm", "-o", str(part)]
            for command in (compile_, link):
                subprocess.run(command, check=True, capture_output=True, text=True)
            part.replace(library)  # at once: other processes may be building the same
    except FileNotFoundError:
        raise CannotBuildError(f"no C compiler ({compiler[0]}); install one, e.g. gcc") from None
    except subprocess.CalledProcessError as error:
        told = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise CannotBuildError(f"{compiler[0]} cannot compile {SOURCE.name}: {told[0]}") from error
    except OSError as error:
        raise CannotBuildError(f"cannot write C kernels to {folder}: {error.strerror}") from error
    return library


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
