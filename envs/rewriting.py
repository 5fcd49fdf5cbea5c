"""Tasks whose cues must be overwritten, as those of arXiv 2601.15086, in a form of our own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .checks import check_range

FORWARD, LEFT, RIGHT = range(3)
"""actions in the maze; LEFT and RIGHT are its cues, too"""

Numbers = npt.NDArray[np.int64]


class EndlessTMaze(gymnasium.Env[Numbers, np.int64]):
    """Corridor after corridor, each with a cue at its beginning and a fork at its end: turn as the last cue
    said.

    Observations: the cue (0 where none is shown) and whether this is the fork. Elsewhere all actions but
    FORWARD wait. The turn that the cue said is worth 1 / `corridors`, the other -1 / `corridors`; both lead
    into the next corridor; going FORWARD at a fork waits. An episode ends after all `corridors`, or after
    twice the steps that these take. Corridors have up to `length` steps between cue and fork, drawn anew.
    """

    def __init__(self, length: int = 8, corridors: int = 10) -> None:
        check_range("length", length, 1)
        check_range("corridors", corridors, 1)
        self.observation_space = spaces.MultiDiscrete([3, 2])
        self.action_space = spaces.Discrete(3)
        self._length, self._corridors = length, corridors

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        super().reset(seed=seed)
        self._remaining, self._patience = self._corridors, 2 * self._corridors * (self._length + 1)
        self._enter()
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        self._patience -= 1
        if self._place < self._fork:
            self._place += action == FORWARD
        elif action != FORWARD:
            reward = (1.0 if action == self._cue else -1.0) / self._corridors
            self._remaining -= 1
            self._enter()
        done = self._remaining == 0
        return self._seen(), reward, done, not done and self._patience == 0, {}

    def get_action_meanings(self) -> list[str]:
        return ["FORWARD", "LEFT", "RIGHT"]

    def _enter(self) -> None:
        self._cue = int(self.np_random.integers(LEFT, RIGHT + 1))
        self._place, self._fork = 0, int(self.np_random.integers(1, self._length + 1))

    def _seen(self) -> Numbers:
        return np.array([self._cue if self._place == 0 else 0, self._place == self._fork], np.int64)


MOVES = ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0))
"""in the grid: wait, left, right, up, down"""


class ColorCubes(gymnasium.Env[Numbers, np.int64]):
    """A grid of cubes that cannot be seen: each place is told once, when the cube is put there. Find the one
    asked for; then it is put somewhere else, and another is asked for.

    Observations: own column and row, the colour asked for, and what is told now: a colour (`colors` if
    nothing is) and its column and row. The first observations of an episode tell one cube each; until the
    last of them was seen nothing moves. To stand on the cube of the colour asked for is worth 1 / `finds`; an
    episode ends after `finds` cubes, or after the steps that crossing the grid for each twice takes.
    """

    def __init__(self, size: int = 4, colors: int = 3, finds: int = 8) -> None:
        check_range("size", size, 2)
        check_range("colors", colors, 2, size**2 - 1)  # a cube of each, and one place more
        check_range("finds", finds, 1)
        self.observation_space = spaces.MultiDiscrete([size, size, colors, colors + 1, size, size])
        self.action_space = spaces.Discrete(len(MOVES))
        self._size, self._colors, self._finds = size, colors, finds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        super().reset(seed=seed)
        cells = self.np_random.permutation(self._size**2)
        self._cubes, self._own = cells[: self._colors], int(cells[self._colors])
        self._shown_color, self._introduced = 0, 0
        self._remaining, self._patience = self._finds, 4 * (self._size - 1) * self._finds
        self._asked = int(self.np_random.integers(self._colors))
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        if self._introduced < self._colors - 1:
            self._introduced += 1
            self._shown_color = self._introduced
            return self._seen(), 0.0, False, False, {}
        self._introduced, self._shown_color = self._colors, self._colors
        self._patience -= 1
        row, column = divmod(self._own, self._size)
        right, down = MOVES[action]
        column, row = (min(max(place, 0), self._size - 1) for place in (column + right, row + down))
        self._own = row * self._size + column
        found = self._own == self._cubes[self._asked]
        if found:
            self._put_elsewhere()
        done = self._remaining == 0
        reward = 1.0 / self._finds if found else 0.0
        return self._seen(), reward, done, not done and self._patience == 0, {}

    def _put_elsewhere(self) -> None:
        """Move the cube that was found to an empty cell, say so, and ask for another one."""
        self._remaining -= 1
        empty = np.setdiff1d(np.arange(self._size**2), [*self._cubes, self._own])
        self._cubes[self._asked] = self.np_random.choice(empty)
        self._shown_color = self._asked
        self._asked = int((self._asked + self.np_random.integers(1, self._colors)) % self._colors)

    def _seen(self) -> Numbers:
        (row, column), shown = divmod(self._own, self._size), self._shown_color
        place = (0, 0) if shown == self._colors else divmod(int(self._cubes[shown]), self._size)[::-1]
        return np.array([column, row, self._asked, shown, *place], np.int64)
