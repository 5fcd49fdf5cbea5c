"""Screens blanked, or the ball hidden, at random, so that an agent must remember what it saw."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Frames = npt.NDArray[np.uint8]


class Area(NamedTuple):
    """A rectangle of a screen, and what it shows with nothing in it."""

    rows: slice
    columns: slice
    background: int | Frames
    """gray, or one for each row `[height, 1]` or column `[width]`"""


SCREEN: Final = (Area(slice(None), slice(None), 0),)

_COURT: Final = np.array([176, *[87] * 63, 147], np.uint8)[:, None]
"""Pong's, whose first and last rows show a part of the walls."""
_HALL: Final = np.array([28, *[0] * 74, 28], np.uint8)
"""Breakout's, whose first and last columns do."""

BALL: Final[Mapping[str, Sequence[Area]]] = {
    # Between and behind the paddles.
    "pong": [Area(slice(13, 78), columns, _COURT) for columns in (slice(8), slice(11, 73), slice(76, 84))],
    # Above the bricks, and between them and the paddle.
    "breakout": [Area(rows, slice(4, 80), _HALL) for rows in (slice(13, 22), slice(38, 75))],
}
"""The areas of a game's screen, 84 by 84 and gray, in which nothing but the ball moves.

Beside them it shows at a paddle, and at what is left of the bricks.
"""


class Occlusion:
    """Paints over areas of each screen with a probability, for as long as it stays in the stack.

    Of whole screens it is the flicker of Hausknecht & Stone (2015). Each environment draws from its own seed.
    """

    def __init__(
        self,
        num_envs: int,
        stack: int,
        probability: float,
        areas: Sequence[Area] = SCREEN,
        salt: int = 0x666C6B72,
    ) -> None:
        """`salt` sets these random numbers apart from others of the same seed, the emulators' among them."""
        self._probability, self._areas, self._salt = probability, areas, salt
        self._draws = [np.random.default_rng() for _ in range(num_envs)]
        self._blank = np.zeros((num_envs, stack), bool)

    def seed(self, seeds: Sequence[int] | npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> None:
        """Seed the environments of `rows` `[N]`, one seed for each of them."""
        for row, seed in zip(np.flatnonzero(rows), seeds, strict=True):
            self._draws[row] = np.random.default_rng((int(seed), self._salt))

    def show(self, obs: Frames, age: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> None:
        """Draw for the environments of `rows`, which made a step, and paint over all in place.

        obs: [N, stack, H, W], newest screen last. age: [N], how many screens came after the episode's first,
        which stands for those before it, too.
        """
        for row in np.flatnonzero(rows):
            newest = self._draws[row].random() < self._probability
            if age[row] == 0:
                self._blank[row] = newest
            else:
                self._blank[row] = [*self._blank[row, 1:], newest]
        for area in self._areas:
            obs[..., area.rows, area.columns][self._blank] = area.background


def occlusions(game: str, num_envs: int, stack: int, flicker: float, blink: float) -> list[Occlusion]:
    """Return what a protocol hides of a game's screens. Raises ValueError for a game without a ball."""
    hidden = []
    if blink:
        if game not in BALL:
            raise ValueError(f"{game}: only the ball of {' and '.join(sorted(BALL))} can blink; omit --blink")
        hidden.append(Occlusion(num_envs, stack, blink, BALL[game], salt=0x626C6E6B))
    if flicker:  # last, so that black screens are black
        hidden.append(Occlusion(num_envs, stack, flicker))
    return hidden
