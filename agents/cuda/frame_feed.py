"""Sends observations to a GPU; of a stack of frames in pageable memory only the newest crosses the bus.

The device keeps each environment's last stack and shifts it. Rows whose stack is not a shift of the previous
one (an episode begins) are sent whole. So is all of an observation whose own memory is page-locked
(page_lock.py): comparing and copying stacks would take a core longer than the bus.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class FrameFeed:
    """Sends one actor's observations `[B, ...]` to its device, step after step.

    Stacks are uint8 `[B, C, H, W]`, oldest frame first. Everything else is sent as it is. Copies alternate
    between two pinned buffers, so that the host fills one while the other is being transferred.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0
        """Number of bytes sent so far."""
        self._host: NDArray[np.uint8] | None = None
        self._stack: Tensor
        self._buffers: list[Tensor] = []
        self._sent: list[torch.cuda.Event] = []
        self._turn = 0

    def __call__(self, observation: NDArray[np.generic]) -> Tensor:
        """Return the observation as a tensor on the device, bit for bit.

        If its memory is page-locked it may be reused only when this thread's stream has read it.
        """
        if self.device.type == "cuda" and observation.flags.carray:
            tensor = torch.from_numpy(observation)
            if tensor.is_pinned():
                self.bytes += tensor.nbytes
                return tensor.to(self.device, non_blocking=True)
        if observation.dtype != np.uint8 or observation.ndim != 4 or observation.shape[1] < 2:
            tensor = torch.from_numpy(observation)
            self.bytes += tensor.nbytes
            return tensor.to(self.device, copy=True)  # the caller may reuse the array
        before, self._host = self._host, observation.astype(np.uint8, copy=True)
        if before is None or before.shape != observation.shape:
            self._stack = self._send(self._host)
            return self._stack
        begun = rows_begun(before, self._host)
        newest = self._send(self._host[:, -1:])
        stack = torch.cat((self._stack[:, 1:], newest), 1)
        if begun.any():
            rows = torch.from_numpy(begun.nonzero()[0])
            stack[rows.to(self.device)] = self._send(self._host[begun])
        self._stack = stack
        return stack

    def _send(self, frames: NDArray[np.uint8]) -> Tensor:
        self.bytes += frames.nbytes
        if self.device.type != "cuda":
            return torch.from_numpy(np.ascontiguousarray(frames))
        if not self._buffers or self._buffers[0].numel() < frames.size:
            self._buffers = [torch.empty(frames.size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self._sent = [torch.cuda.Event() for _ in range(2)]
        self._turn = 1 - self._turn
        buffer, sent = self._buffers[self._turn][: frames.size].view(frames.shape), self._sent[self._turn]
        sent.synchronize()  # its last transfer, two steps ago, is long finished
        buffer.numpy()[...] = frames  # torch would use threads, whose cores emulate
        arrived = buffer.to(self.device, non_blocking=True)
        sent.record()
        return arrived


def rows_begun(before: NDArray[np.uint8], now: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark the rows `[B]` whose stack is not the previous one shifted by a frame."""
    old, new = before[:, 1:].reshape(len(before), -1), now[:, :-1].reshape(len(now), -1)
    if old.shape[1] % 8 == 0:  # eight pixels at a time
        old, new = old.view(np.uint64), new.view(np.uint64)
    return (old != new).any(1)
