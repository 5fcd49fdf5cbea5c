"""A picture out of a game that the agent plays, with what its memory does beside it."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import islice

import numpy as np
import numpy.typing as npt

from ...envs import find_protocol
from ...envs.atari import AtariGames
from ..errors import RunError
from ..evaluation.environments import full_action_set
from ..evaluation.loading import Loaded
from ..evaluation.video import EMULATOR_FRAMES_PER_SECOND, play_game, replay, strips
from ..evaluation.video_frame import Pictures

MOST_STEPS = 20_000


def draw_still(loaded: Loaded, tell: Callable[[str], None]) -> bytes | None:
    """Play a game greedily and draw its middle as PNG; None for what is no Atari game, or never ends."""
    spec = loaded.agent.spec
    if spec.game is None or spec.protocol is None:
        return None
    full = full_action_set(spec)
    play, colour = (
        AtariGames(spec.game, 1, spec.protocol, 1, full, colour=each, options=spec.env_options)
        for each in (False, True)
    )
    try:
        trace = play_game(loaded.agent.eval(), play, 1, True, MOST_STEPS)
    except RunError:
        colour.close()
        tell(f"no still: a game went past {MOST_STEPS:,} agent steps")
        return None
    middle = len(trace.actions) // 2
    speed = EMULATOR_FRAMES_PER_SECOND / find_protocol(spec.protocol).frame_skip
    title = spec.game.replace("_", " ").title()
    about = f"{spec.core}, step {loaded.step:,}, {spec.protocol}, greedy"
    screen = next(islice(replay(trace, colour), middle, None))
    height, width, _ = screen.shape
    drawn = Pictures(title, about, (height, width), trace.score, trace.begins, strips(trace), speed)
    return _png(drawn.draw(middle, screen))


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
