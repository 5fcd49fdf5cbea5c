"""Scores that can be aggregated: those of the games that all series share, in one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...envs import find_task
from .grouping import Comparison
from .names import join
from .scores import ScoreBoard
from .statistics import Array, Interval, Scores, as_scores, bootstrap

ONE_SEED = "A game with one seed does not vary at all in the bootstrap: intervals are too narrow."
OVER_GAMES = (
    "A game with a single seed does not vary, so intervals are from drawing games anew. They say how the "
    "result would differ with other games of this kind, the luck of their seeds included, not how sure it "
    "is in any one game."
)
SEVERAL_GAMES = 5
"""Drawing from fewer games anew says little of others."""


def has_single(*samples: Scores) -> bool:
    """Return whether any game has a single seed."""
    return any(len(game) == 1 for sample in samples for game in sample)


class Aggregation:
    """Human-normalised scores where they are known, else those of tasks of memory; without either one
    game alone, in its own unit."""

    def __init__(self, comparison: Comparison, board: ScoreBoard) -> None:
        self._cells = board.cells
        self._games = comparison.games
        self.series = [s for s in comparison.series if any(label == s for _, label in board.cells)]
        """those with any score"""
        self.shared = [
            game
            for game in comparison.games
            if self.series and all((game, label) in board.cells for label in self.series)
        ]
        """games with a score of every series"""
        normal = [game for game in self.shared if self._has_normalized(game)]
        atari = [game for game in normal if find_task(game) is None]
        normal = atari or normal
        self.normalized = bool(normal)
        self.games = normal or (self.shared if len(self.shared) == 1 else [])
        """games in the aggregates"""
        self.best = "human play" if atari else "the best return"
        """what a normalised score of 1 stands for"""
        several = self.games or self.shared
        every = [self.raw(label, several) for label in self.series]
        self.over_games = len(several) >= SEVERAL_GAMES and has_single(*every)
        """whether intervals are over games, as seeds alone would not vary"""
        self.unit = f"{'human' if atari else 'task'}-normalised score" if self.normalized else board.kind
        self.notes = self._notes(comparison)

    def of(self, label: str) -> Scores:
        """Return the scores of a series in the common unit, by game."""
        if not self.normalized:
            return self.raw(label, self.games)
        cells = [self._cells[game, label] for game in self.games]
        return as_scores([[s.normalized for s in cell if s.normalized is not None] for cell in cells])

    def raw(self, label: str, games: Sequence[str]) -> Scores:
        """Return the scores of a series by game, each in its own unit: for ranks."""
        return as_scores([[score.value for score in self._cells[game, label]] for game in games])

    def of_both(self, x: str, y: str) -> list[str]:
        """Return the games with a score of both series."""
        return [game for game in self._games if (game, x) in self._cells and (game, y) in self._cells]

    def estimate(self, statistic: Callable[..., Array], *samples: Scores, reps: int = 10_000) -> Interval:
        """Return a statistic of samples of the same games with its interval, over seeds or over games."""
        return bootstrap(statistic, *samples, over_games=self.over_games, reps=reps)

    def about_single(self, *samples: Scores) -> list[str]:
        """Say what a game's single seed does to the intervals of `estimate`; nothing where all have more."""
        if not has_single(*samples):
            return []
        return [OVER_GAMES if self.over_games else ONE_SEED]

    def _has_normalized(self, game: str) -> bool:
        return all(s.normalized is not None for label in self.series for s in self._cells[game, label])

    def _notes(self, comparison: Comparison) -> list[str]:
        notes = []
        if unshared := [game for game in comparison.games if game not in self.shared]:
            notes.append(
                f"Without {join(unshared)}: not every series has a score there. Compare fewer series to "
                "aggregate over more games."
            )
        if self.normalized and (unknown := [game for game in self.shared if game not in self.games]):
            what = "no score of a human" if self.best == "human play" else "no range of returns"
            notes.append(f"Without {join(unknown)}: {what}, or none of whole games, is known.")
        if not self.normalized and len(self.shared) == 1:
            notes.append("It is one game without human-normalised scores, so the unit is its own return.")
        if not self.normalized and len(self.shared) > 1:
            notes.append("These games have no human-normalised scores, so their returns have no common unit.")
        return notes + (self.about_single(*map(self.of, self.series)) if self.games else [])


MOST_PAIRS = 30
"""So many pairs of series are drawn, those that differ most; tables have all."""


def pairs(series: Sequence[str]) -> list[tuple[str, str]]:
    """Pair every series with every one before it: (series, baseline)."""
    return [(better, baseline) for i, baseline in enumerate(series) for better in series[i + 1 :]]
