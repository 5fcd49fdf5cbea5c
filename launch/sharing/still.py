"""A picture out of a game that the agent plays, with what its memory does beside it."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import islice

from PIL import Image

from ...envs import find_protocol
from ..errors import RunError
from ..evaluation.loading import Loaded
from ..evaluation.recording import captions, game
from ..evaluation.video import draw_pictures, play_game, replay

MOST_STEPS = 20_000


def draw_still(loaded: Loaded, tell: Callable[[str], None]) -> bytes | None:
    """Play a game greedily and draw its middle as PNG; None for what is no Atari game, or never ends."""
    spec = loaded.agent.spec
    if spec.game is None or spec.protocol is None:
        return None
    play, colour = (game(spec, spec.protocol, each) for each in (False, True))
    try:
        trace = play_game(loaded.agent.eval(), play, 1, True, MOST_STEPS)
    except RunError:
        colour.close()
        tell(f"no still: a game went past {MOST_STEPS:,} agent steps")
        return None
    middle = len(trace.actions) // 2
    about = captions(loaded, spec.protocol, "greedy")
    pictures = draw_pictures(trace, colour, *about, find_protocol(spec.protocol).frame_skip)
    screen = next(islice(replay(trace, colour), middle, None))
    picture = io.BytesIO()
    Image.fromarray(pictures.draw(middle, screen)).save(picture, format="PNG", optimize=True)
    return picture.getvalue()
