"""Section of ranks: the order of cores over games, here and as published."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from ...runs.published import published_scores
from ..aggregation import SEVERAL_GAMES
from ..grouping import Comparison
from ..names import join
from ..relative import BUDGETS, PUBLISHED_CORES, is_published
from ..report import Section
from ..scores import ScoreBoard
from ..statistics import mean_ranks
from ..tables import Cell, Table


def ranking(comparison: Comparison, board: ScoreBoard) -> list[Section]:
    """Tabulate mean ranks of the cores that were published, over the published games that all have scores of.

    No section for one core or few games. A core with several series is left out: it was published once.
    """
    every = list(comparison.core_of.values())
    cores = {
        label: core
        for label, core in comparison.core_of.items()
        if core in PUBLISHED_CORES and every.count(core) == 1
    }
    games = [game for game in comparison.games if is_published(game)]
    labels = [
        label for label in cores if sum((game, label) in board.cells for game in games) >= SEVERAL_GAMES
    ]
    games = [game for game in games if all((game, label) in board.cells for label in labels)]
    if len(labels) < 2 or len(games) < SEVERAL_GAMES:
        return []
    ours = [
        [statistics.fmean(score.value for score in board.cells[game, label]) for game in games]
        for label in labels
    ]
    ranks = [_ranks(ours), *(_ranks(_published(labels, cores, games, millions)) for millions in BUDGETS)]
    order = np.argsort(ranks[0], kind="stable")
    rows: list[list[Cell]] = [[labels[i], *(float(of[i]) for of in ranks)] for i in order]
    columns = ("series", "here", *(f"published, {millions}M" for millions in BUDGETS))
    text = (
        f"Mean rank over {len(games)} games, by the mean score of a series' runs in each: 1 is the highest "
        f"of these {len(labels)}, equal scores share their ranks. The published agents played for as long "
        "as the columns say, under their own protocol: the order can be compared, the scores cannot."
    )
    return [Section("Ranking", [text, f"Games: {join(games)}."], tables=[Table("ranking", columns, rows, 1)])]


def _published(
    labels: Sequence[str], cores: dict[str, str], games: Sequence[str], millions: int
) -> list[list[float]]:
    return [[published_scores(game, cores[label])[millions].mean for game in games] for label in labels]


def _ranks(scores: list[list[float]]) -> list[float]:
    ranks: list[float] = mean_ranks(np.asarray(scores)).tolist()
    return ranks
