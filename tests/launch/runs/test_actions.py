"""Which of a game's actions an agent has, by their number alone."""

from __future__ import annotations

import pytest

from deltabeast.launch.runs.actions import ActionSet, action_set


@pytest.mark.parametrize(
    ("game", "count", "which"),
    [
        ("amidar", 10, ActionSet.OWN),
        ("amidar", 6, ActionSet.FIRST),
        ("amidar", 18, ActionSet.ALL),
        ("amidar", 7, None),
        ("pong", 6, ActionSet.OWN),  # six are all that it reacts to
        ("breakout", 4, ActionSet.OWN),
        ("breakout", 6, None),  # more than its own
        ("jamesbond", 18, ActionSet.OWN),  # reacts to all
        ("jamesbond", 6, ActionSet.FIRST),
    ],
)
def test_a_number_of_actions_tells_which_they_are(game: str, count: int, which: ActionSet | None) -> None:
    assert action_set(game, count) is which
