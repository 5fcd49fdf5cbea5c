"""Restarts with exponential back-off and a budget."""

from __future__ import annotations

import time
from collections.abc import Callable

BUDGET = 10
"""Consecutive deaths after which a process is still restarted."""
HEALTHY = 600.0
"""Seconds of life after which earlier deaths no longer count."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds; the delay doubles from death to death."""


class Restarts:
    """Counts the consecutive deaths of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self.deaths = 0
        self.total = 0
        """deaths so far, consecutive or not"""

    def began(self) -> None:
        """Note that the process is alive."""
        self._began = self._clock()

    def died(self) -> float | None:
        """Return the seconds to wait before a restart, or None if the budget is spent."""
        if self._began is not None and self._clock() - self._began >= HEALTHY:
            self.deaths = 0
        self._began = None
        self.deaths += 1
        self.total += 1
        if self.deaths > BUDGET:
            return None
        return min(FIRST_DELAY * 2.0 ** (self.deaths - 1), LONGEST_DELAY)
