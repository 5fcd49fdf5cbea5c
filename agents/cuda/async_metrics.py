"""GPU scalars that are copied to the host asynchronously; the first read waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


class AsyncMetrics(Mapping[str, float]):
    """A mapping computed by `read`, which may block, when it is first looked at. Pickled as a dict."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read: Callable[[], Mapping[str, float]] | None = read
        self._values: Mapping[str, float] = {}

    def _look(self) -> Mapping[str, float]:
        if self._read is not None:
            self._values = self._read()
            self._read = None  # frees the memory that it holds
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._look()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())

    def __reduce__(self) -> tuple[type[dict[str, float]], tuple[dict[str, float]]]:
        return dict, (dict(self),)


def send(scalars: Mapping[str, Tensor]) -> AsyncMetrics:
    """Start to copy scalars to the host, as they are once the stream's queued work is done."""
    names = list(scalars)
    values = torch.stack([value.detach().to(torch.float32) for value in scalars.values()])
    if not values.is_cuda:
        return AsyncMetrics(lambda: dict(zip(names, values.tolist(), strict=True)))
    arrived = torch.cuda.Event(blocking=True)  # whoever waits leaves its core to the emulators
    host = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
    arrived.record(torch.cuda.current_stream(values.device))

    def read() -> dict[str, float]:
        arrived.synchronize()
        return dict(zip(names, host.tolist(), strict=True))

    return AsyncMetrics(read)
