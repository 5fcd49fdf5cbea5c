"""Numbers on their way from a GPU: nobody waits for them before somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


class Late(Mapping[str, float]):
    """What `read` gives; the first look at any of it calls `read`, which may wait. Pickled as a dict."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read: Callable[[], Mapping[str, float]] | None = read
        self._values: Mapping[str, float] = {}

    def _look(self) -> Mapping[str, float]:
        if self._read is not None:
            self._values = self._read()
            self._read = None  # and with it the memory that it reads from
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._look()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())

    def __reduce__(self) -> tuple[type[dict[str, float]], tuple[dict[str, float]]]:
        return dict, (dict(self),)


def send(scalars: Mapping[str, Tensor]) -> Late:
    """Start to bring scalars to the host, as they are after what the current stream has to do so far."""
    names = list(scalars)
    values = torch.stack([value.detach().to(torch.float32) for value in scalars.values()])
    if not values.is_cuda:
        return Late(lambda: dict(zip(names, values.tolist(), strict=True)))
    arrived = torch.cuda.Event(blocking=True)  # waiting leaves the core to the emulators
    there = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
    arrived.record(torch.cuda.current_stream(values.device))

    def read() -> dict[str, float]:
        arrived.synchronize()
        return dict(zip(names, there.tolist(), strict=True))

    return Late(read)
