"""Where a thread's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds per stage. Stages do not nest; time outside any of them is not counted."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.stage = "waiting"
        """the stage entered last, for messages about what hangs"""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        before, self.stage = self.stage, stage
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start
            self.stage = before
