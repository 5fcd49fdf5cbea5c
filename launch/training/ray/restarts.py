"""When something that died may be started again: later each time, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

BUDGET = 10
"""Deaths in a row that are forgiven."""
HEALTHY = 600.0
"""Seconds of life after which earlier deaths count no more."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds; the delay doubles from death to death."""


class Restarts:
    """The deaths of one process in a row."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self.deaths = 0
        self.total = 0
        """whenever they were"""

    def began(self) -> None:
        """It is alive."""
        self._began = self._clock()

    def died(self) -> float | None:
        """Seconds to wait before it is started again; None if that has been tried often enough."""
        if self._began is not None and self._clock() - self._began >= HEALTHY:
            self.deaths = 0
        self._began = None
        self.deaths += 1
        self.total += 1
        if self.deaths > BUDGET:
            return None
        return min(FIRST_DELAY * 2.0 ** (self.deaths - 1), LONGEST_DELAY)
