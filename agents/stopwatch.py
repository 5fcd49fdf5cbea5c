"""Where a thread's time goes: seconds per stage, which a profiler's trace shows too."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


Mark = Callable[[str], AbstractContextManager[object]]


class Tracing:
    """The profiler's annotations of stages."""

    mark: Mark | None = None
    """Factory of an annotation; None when not profiling."""


class Stopwatch:
    """Seconds per stage. Stages do not nest; time outside any of them is not counted."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.stage = "waiting"
        """Stage entered last, for messages about a process that hangs."""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        before, self.stage = self.stage, stage
        start = time.perf_counter()
        try:
            if Tracing.mark is None:
                yield
            else:
                with Tracing.mark(stage):
                    yield
        finally:
            self.seconds[stage] += time.perf_counter() - start
            self.stage = before


def timed(stage: str) -> Callable[[Method], Method]:
    """Decorate a method: its time counts as `stage` in the `stopwatch` of its object."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def measured(self: Any, *arguments: Any) -> Any:
            # As `Stopwatch.__call__`, but a context manager takes longer than both clocks, at every step.
            watch = self.stopwatch
            before, watch.stage = watch.stage, stage
            start = time.perf_counter()
            try:
                if Tracing.mark is None:
                    return method(self, *arguments)
                with Tracing.mark(stage):
                    return method(self, *arguments)
            finally:
                watch.seconds[stage] += time.perf_counter() - start
                watch.stage = before

        return measured  # type: ignore[return-value]

    return decorate
