"""Memory of the host that a GPU reads by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from numpy.typing import NDArray


@contextmanager
def page_locked(array: NDArray[Any], device: torch.device) -> Iterator[bool]:
    """Lock the pages of an array, so that a copy to the GPU needs no core; yield whether that could be done.

    `Tensor.is_pinned()` is true of them meanwhile. Some drivers cannot lock what is there already, as those
    of WSL 2.
    """
    cudart = torch.cuda.cudart()
    locked = int(cudart.cudaHostRegister(array.ctypes.data, array.nbytes, 0)) == 0
    if not locked:
        with suppress(RuntimeError):
            torch.zeros(1, device=device)  # raises the error, which any later kernel would raise otherwise
    try:
        yield locked
    finally:
        if locked:
            cudart.cudaHostUnregister(array.ctypes.data)
