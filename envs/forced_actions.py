"""Buttons pressed for the agent at the start of its episodes: in many games nothing moves before FIRE.

The published code presses them inside `reset`, where the agent does not see it. A vector environment steps
all its games together, so here they take the place of the agent's action in the steps that follow a reset.

Each environment is in one of a few states, and a table says which one follows, by what the step brought.
The table repeats the published wrappers down to their oddities: a life lost while FIRE is pressed calls for
another reset, after which FIRE is not pressed again, and a life lost during the no-op goes unnoticed.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FREE, NOOP, FIRE, SECOND, NOOP_THEN_SECOND, NOOP_THEN_FREE = range(6)  # states
GOES_ON, LIFE_LOST, GAME_OVER = range(3)  # what a step brings

# Rows: what the step brought. Columns: the state the step was made in.
_FIRE_GAME = np.array(
    [
        # FREE  NOOP    FIRE              SECOND          NOOP_THEN_SECOND  NOOP_THEN_FREE
        [FREE, FIRE, SECOND, FREE, SECOND, FREE],  # GOES_ON
        [NOOP, FIRE, NOOP_THEN_SECOND, NOOP_THEN_FREE, SECOND, FREE],  # LIFE_LOST
        [FIRE, SECOND, SECOND, FREE, FREE, FREE],  # GAME_OVER
    ]
)
# A game that needs no FIRE still gets the no-op after a life.
_OTHER_GAME = np.full_like(_FIRE_GAME, FREE)
_OTHER_GAME[LIFE_LOST, FREE] = NOOP_THEN_FREE


class ForcedActions:
    """Decides, for a batch of environments, which are steered and with which actions.

    `minimal` names the game's own actions, which decide whether FIRE is needed and what the second button is;
    `actions` those of the set in use, in which the buttons are pressed.
    """

    def __init__(self, num_envs: int, minimal: Sequence[str], actions: Sequence[str]) -> None:
        fire_game = len(minimal) > 2 and minimal[1] == "FIRE"
        self._next_state = _FIRE_GAME if fire_game else _OTHER_GAME
        self._button = np.zeros(6, np.int64)
        if fire_game:
            self._button[FIRE] = actions.index("FIRE")
            self._button[SECOND] = actions.index(minimal[2])
        self._state = np.full(num_envs, self._next_state[GAME_OVER, FREE])

    def reset(self, rows: npt.NDArray[np.bool_]) -> None:
        """These environments begin a game."""
        self._state[rows] = self._next_state[GAME_OVER, FREE]

    def override(self, actions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the actions to send, and a mask of those that are not the agent's."""
        forced = self._state != FREE
        return (np.where(forced, self._button[self._state], actions) if forced.any() else actions), forced

    def advance(self, life_lost: npt.NDArray[np.bool_], game_over: npt.NDArray[np.bool_]) -> None:
        """Advance each environment's state by what its step brought."""
        event = np.where(game_over, GAME_OVER, np.where(life_lost, LIFE_LOST, GOES_ON))
        self._state = self._next_state[event, self._state]
