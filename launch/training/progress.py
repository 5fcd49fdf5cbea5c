"""Scores, speed and shares of the time of a run."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...agents import Episodes
from ...agents.stopwatch import Stopwatch

WINDOW = 100
"""Number of last episodes that scores are means of, as usual in the field."""
_BEST_NEEDS = 10
"""Number of games below which a mean cannot be the best so far."""


class Scores:
    """Life and game returns of the last episodes, and the best mean game return so far."""

    def __init__(self) -> None:
        self._life: deque[float] = deque(maxlen=WINDOW)
        self._game: deque[float] = deque(maxlen=WINDOW)
        self._length: deque[float] = deque(maxlen=WINDOW)
        self.episodes = 0
        """games finished"""
        self.score_wraps = 0
        self.best: float | None = None
        self._first: list[float] | None = []
        """None in a run of an earlier version, which did not save them: then nothing is compared"""

    @property
    def first(self) -> float | None:
        """Mean return of the run's first games, most of them of an agent that has learned nothing."""
        return _mean(self._first) if self._first and len(self._first) == _BEST_NEEDS else None

    def add(self, episodes: Episodes) -> None:
        self._life.extend(episodes.life_returns)
        self._game.extend(episodes.game_returns)
        self._length.extend(episodes.game_lengths)
        self.episodes += len(episodes.game_returns)
        self.score_wraps += episodes.score_wraps
        if self._first is not None:
            self._first += episodes.game_returns[: _BEST_NEEDS - len(self._first)]
        mean = _mean(self._game)
        if mean is not None and len(self._game) >= _BEST_NEEDS:
            self.best = mean if self.best is None else max(self.best, mean)

    def row(self) -> dict[str, float]:
        row: dict[str, float | None] = {
            "game_return": _mean(self._game),
            "life_return": _mean(self._life),
            "game_length": _mean(self._length),
            "best_game_return": self.best,
            "episodes": self.episodes,
            "score_wraps": self.score_wraps,
        }
        return {name: value for name, value in row.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        return {
            "life": list(self._life),
            "game": list(self._game),
            "length": list(self._length),
            "episodes": self.episodes,
            "score_wraps": self.score_wraps,
            "best": self.best,
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for window, name in ((self._life, "life"), (self._game, "game"), (self._length, "length")):
            window.clear()
            window.extend(state[name])
        self.episodes, self.score_wraps, self.best = state["episodes"], state["score_wraps"], state["best"]
        self._first = state.get("first")


class Speed:
    """Agent steps per second over the last 10 and 60 seconds, not since the start."""

    def __init__(self, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks = deque([(clock(), step)])

    def mark(self, step: int) -> None:
        now = self._clock()
        self._marks.append((now, step))
        while len(self._marks) > 2 and self._marks[1][0] <= now - 60.0:
            self._marks.popleft()

    def over(self, seconds: float) -> float:
        """Steps per second since the newest mark at least `seconds` old, or since the oldest one."""
        end, last = self._marks[-1]
        start, first = next((m for m in reversed(self._marks) if m[0] <= end - seconds), self._marks[0])
        return (last - first) / (end - start) if end > start else 0.0


class Window:
    """The updates since the last row of the log: means of their metrics, and where the time went."""

    def __init__(self, learner: Stopwatch, actors: Sequence[Stopwatch], in_turns: bool) -> None:
        self._watches = (learner, *actors)
        self._in_turns = in_turns
        self._begin()

    def _begin(self) -> None:
        self._start = time.monotonic()
        self._seconds = [dict(watch.seconds) for watch in self._watches]
        self._updates: list[Mapping[str, float]] = []

    def age(self) -> float:
        """Return the seconds since the last row."""
        return time.monotonic() - self._start

    def add(self, metrics: Mapping[str, float]) -> None:
        """Count one update; its metrics are looked at when the window closes."""
        self._updates.append(metrics)

    def is_empty(self) -> bool:
        """Return whether no update was made since the last row."""
        return not self._updates

    def close(self) -> dict[str, float]:
        """Return the row of this window, and begin the next one."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for metrics in self._updates:
            for name, value in metrics.items():
                values[name].append(value)
        means = {name: sum(several) / len(several) for name, several in values.items()}
        lag_max = max(metrics["policy_lag"] for metrics in self._updates)
        learned, fresh = (means.pop(name, 0.0) for name in ("num_learned", "num_fresh"))
        reuse = {"reuse": learned / fresh} if fresh else {}  # none of a batch that is learned from again
        learner, *actors = (
            {stage: seconds - old.get(stage, 0.0) for stage, seconds in watch.seconds.items()}
            for watch, old in zip(self._watches, self._seconds, strict=True)
        )
        shares = time_shares(learner, actors, self.age(), self._in_turns)
        row = {**means, "policy_lag_max": lag_max, **reuse, **shares}
        self._begin()
        return row


def time_shares(
    learner: Mapping[str, float], actors: Sequence[Mapping[str, float]], wall: float, in_turns: bool
) -> dict[str, float]:
    """Compute shares of `wall` seconds from the seconds that learner and actors spent in each stage.

    Actors in turns share the learner's thread, and all shares add up to one. Actors in threads of their
    own have clocks of their own: emulation and inference are then means over the actors, and `waiting`
    is the learner's, for unrolls.
    """
    threads = 1 if in_turns else len(actors)
    shares = {
        "share_emulation": sum(actor.get("emulation", 0.0) for actor in actors) / (wall * threads),
        "share_inference": sum(actor.get("inference", 0.0) for actor in actors) / (wall * threads),
        "share_learning": learner.get("learning", 0.0) / wall,
    }
    # A stage counts when it ends: in a short window one that began before it can exceed it.
    shares = {name: min(share, 1.0) for name, share in shares.items()}
    busy = sum(shares.values()) if in_turns else shares["share_learning"]
    return {**shares, "share_waiting": max(0.0, 1.0 - busy)}


def _mean(values: Sequence[float] | deque[float]) -> float | None:
    return sum(values) / len(values) if values else None
