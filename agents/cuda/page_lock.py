"""Memory of the host that a GPU reads by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from numpy.typing import NDArray


@contextmanager
def page_locked(array: NDArray[Any], device: torch.device) -> Iterator[bool]:
    """Lock an array's pages, so that a copy to the GPU needs no core; yield False where that cannot be done.

    `Tensor.is_pinned()` is true of them meanwhile. Some drivers lock no memory but what they allocated, as
    those of WSL 2. For other devices than GPUs there is nothing to do.
    """
    if device.type != "cuda":
        yield True
        return
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
