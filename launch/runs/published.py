"""Published scores to set beside one's own.

Source: Irie, Schlag, Csordás and Schmidhuber (2021), "Going Beyond Linear Transformers with Recurrent Fast
Weight Programmers", tables 9 (50M) and 10 (200M), with two misprints mended (Seaquest's name, a comma in
Zaxxon's delta_net), and of four games each the larger RDN of table 3 and the gated feedforward agent of
table 8 (whose 200M follow from its other columns, which are those of table 10). Each is the mean and
population standard deviation of the means of five evaluations of thirty episodes by a greedy agent, where an
episode is one life; steps are agent steps. One training seed each, it seems: the paper names no number. Only
scores under the protocol "paper-code" compare with them.
"""

from __future__ import annotations

import csv
import functools
from importlib.resources import files
from typing import Final, NamedTuple

from ...envs import canonical_game

PROTOCOL: Final = "paper-code"
NO_NEGATIVE = frozenset({"battle_zone", "up_n_down"})
"""Games whose published evaluation leaves out episodes with a negative return: their score counters wrap."""

DEFAULT_ACTIONS: Final = 6
"""The released code's default for the number of actions. Published agents of these games kept it, and chose
among the first 6 of the game's own actions."""
FEWER_ACTIONS = frozenset({"amidar", "jamesbond"})


class PublishedScore(NamedTuple):
    mean: float
    std: float


def published_scores(game: str, core: str) -> dict[int, PublishedScore]:
    """The scores of a core on a game by millions of agent steps (50, 200); empty if none was published."""
    return dict(_table().get((canonical_game(game), core), {}))


@functools.cache
def _table() -> dict[tuple[str, str], dict[int, PublishedScore]]:
    text = (files(__package__) / "published_scores.csv").read_text(encoding="utf-8")
    table: dict[tuple[str, str], dict[int, PublishedScore]] = {}
    for row in csv.DictReader(text.splitlines()):
        scores = table.setdefault((canonical_game(row["ale_id"]), row["core"]), {})
        scores[int(row["steps_millions"])] = PublishedScore(float(row["mean"]), float(row["std"]))
    return table
