"""Set up the process for its machine: memory, threads, precision, device."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ...agents.stems import IMAGE_STEMS
from ...envs import available_cores, available_threads
from ...kernels.native import compiling
from ..output import tell

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def prepare_process(threads: int | None = None) -> None:
    """Keep freed memory, compute float32 in float32, and use `threads`, by default one a core.

    OMP_NUM_THREADS limits that default.

    Every process calls this first: threads that begin later have its way with numbers near zero. Should one
    crash, in an emulator's C++ say, it shows where.
    """
    faulthandler.enable(file=2)
    compiling.announce = tell
    keep_freed_memory()
    # Else cuDNN would use TF32, whose mantissa has 10 bits instead of 23.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    # Gradients that fade over a long unroll end below 1e-38, where an operation takes a processor some
    # hundred cycles more; nothing is learned from them.
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads or available_threads())


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory instead of returning it to the kernel; True where it could.

    Every layer of a learner's batch allocates up to some hundred megabytes. By default each is a fresh
    mapping whose pages fault one by one: that costs half of the training speed on a CPU.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 64 << 20), (_M_ARENA_MAX, 1))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Raise ValueError, which names `what`, if there is no memory for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        raise ValueError(
            f"there is no memory for {what} of this size; give smaller --core-options"
        ) from error


def check_memory(
    what: str,
    needed: int,
    remedy: str = "give smaller --core-options",
    device: torch.device | None = None,
) -> None:
    """Raise ValueError, which names `what` and the remedy, if this machine, or a GPU, has less than `needed`
    bytes of memory."""
    if device is not None and device.type == "cuda":
        there, where = torch.cuda.get_device_properties(device).total_memory, "this GPU"
    else:
        there, where = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"
    if needed > there:
        raise ValueError(
            f"there is no memory for {what} of this size: {needed / 1e9:,.0f} GB, where {where} has "
            f"{there / 1e9:,.0f}; {remedy}"
        )


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error says that memory could not be had."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = "allocate memory", "size calculation overflowed"  # no such memory, and no such address
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)


def own_cpus(count: int) -> list[int] | None:
    """Choose a CPU for each of `count` processes; None if CPUs are shared with others or unknown.

    Where one process works on each core, waking a thread on another core costs more than it gains: emulation
    and inference hand over to each other at every step. Processes that step environments beside a GPU are
    faster so, too, though this one needs some of their cores' time (results/gpu/processes.py).
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return None
    cpus = sorted(os.sched_getaffinity(0))
    return cpus if 1 < count == len(cpus) == available_cores() else None


def pin(cpu: int) -> Callable[[], None]:
    """Pin this thread, and those that it starts from now on, to one CPU; return a function that undoes it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    return lambda: os.sched_setaffinity(0, before)


def resolve_device(name: str) -> torch.device:
    """Resolve `--device`: `auto` is the first GPU if there is one; a numbered one becomes the current one.

    Raises ValueError for a device that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise ValueError(f"--device {name}: choose auto, cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--device {name}: torch sees no GPU here; use --device cpu, or install torch with CUDA"
        )
    if index and int(index) >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: torch sees {torch.cuda.device_count()} GPUs, counted from 0")
    if index:  # streams, events and graphs are made on the current one
        torch.cuda.set_device(int(index))
    return torch.device(name)


def autocast_dtype(precision: str, device: torch.device, stem: str) -> torch.dtype | None:
    """Choose the dtype of the stem's arithmetic; None is float32.

    `auto` takes bfloat16 for convolutions where the hardware has it: nothing else is slow enough to gain.
    """
    if precision == "auto":
        precision = "bf16" if stem in IMAGE_STEMS and _has_bf16(device) else "fp32"
    return torch.bfloat16 if precision == "bf16" else None


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_avx512_bf16_supported())
