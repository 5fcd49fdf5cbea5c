"""What the actors of a cluster tell of themselves, for the rows of the log: steps, bytes, seconds, ages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from ....agents.stopwatch import Stopwatch
from .actor_process import Header
from .cluster import Location


class Traffic:
    """Counts the unrolls that actors hand over, and the time of actors and learners."""

    def __init__(self, num_actors: int) -> None:
        self.learner = Stopwatch()
        self.actors = [Stopwatch() for _ in range(num_actors)]
        self._steps: Counter[int] = Counter()
        """agent steps of each actor since the last row"""
        self._bytes = 0
        self._reading_ages: Mapping[str, float] = {}
        """the newest since the last row"""
        self._row_at = time.monotonic()

    def add(self, actor: int, header: Header) -> None:
        """Count an unroll that an actor hands over."""
        for stage, seconds in header.seconds.items():
            self.actors[actor].seconds[stage] += seconds
        self._steps[actor] += header.num_steps
        self._bytes += header.nbytes
        self._reading_ages = header.reading_ages or self._reading_ages

    def row(self, locations: Sequence[Location | None]) -> dict[str, float]:
        """Return bytes per step, and the speeds of nodes and actors since the last row; reading ages, if any.

        `locations` are the actors', by index.
        """
        now = time.monotonic()
        seconds, self._row_at = now - self._row_at, now
        nodes: Counter[str] = Counter()
        for index, location in enumerate(locations):
            if location is not None:
                nodes[location.node] += self._steps[index]
        steps = sum(self._steps.values())
        row = {"bytes_per_step": self._bytes / steps} if steps else {}
        row |= {f"nodes/{node}/sps": count / seconds for node, count in nodes.items()}
        row |= {f"actors/{index}/sps": self._steps[index] / seconds for index in range(len(locations))}
        row |= self._reading_ages
        self._steps.clear()
        self._bytes, self._reading_ages = 0, {}
        return row
