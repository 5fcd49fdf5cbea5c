"""Which of a game's actions an agent has, by their number."""

from __future__ import annotations

from enum import Enum

from ...envs import game_info
from .published import DEFAULT_ACTIONS

_ALL = 18


class ActionSet(Enum):
    OWN = "those that the game reacts to"
    FIRST = "the first six of these, as published agents of two games"
    ALL = "all eighteen of the console"


def action_set(game: str, count: int) -> ActionSet | None:
    """Return the set that `count` actions are; None if agents of this game have another number.

    Where the game reacts to all eighteen, or to six, that is its own set.
    """
    own = game_info(game).actions
    if count == own:
        return ActionSet.OWN
    if count == DEFAULT_ACTIONS < own:
        return ActionSet.FIRST
    return ActionSet.ALL if count == _ALL else None
