"""Pictures of the steps of a stretch of play, for `eval --why`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv
from PIL import Image, ImageDraw, ImageFont

from .stretch import Play
from .video import Trace, replay

_WIDTH = 320
"""Pixels of a picture."""
MOST_NUMBERS = 24
"""Of an observation that are drawn."""
INK, GREY, PAPER, BAR = "#111827", "#6b7280", "#ffffff", "#0072b2"

Pixels = npt.NDArray[np.uint8]


def screens(play: Play, colour: VectorEnv, steps: Collection[int]) -> dict[int, Image.Image]:
    """Return pictures of steps of an Atari game: the screen, and below it the frames that the agent saw.

    `colour` is the same game in colour. Raises RunError if it does not play the same game again.
    """
    trace = Trace(play.seed, play.actions, play.score, [], play.begins, [])
    pictures = {}
    for step, screen in enumerate(replay(trace, colour)):
        if step in steps:
            pictures[step] = _stack(Image.fromarray(screen), in_grey(play.observations[step]))
    return pictures


def pictures(play: Play, steps: Collection[int]) -> dict[int, Image.Image]:
    """Return pictures of what the agent saw in steps: images, or numbers as bars."""
    if play.observations[0].ndim == 3:
        return {step: _widened(side_by_side(play.observations[step])) for step in steps}
    largest = np.abs(np.stack(play.observations)).reshape(len(play.observations), -1).max(0)
    signed = any((each < 0).any() for each in play.observations)
    return {step: bars(play.observations[step].ravel(), largest, signed) for step in steps}


def side_by_side(channels: Pixels) -> Image.Image:
    """Draw an image `[C, H, W]`: three channels in colour, others each in grey, from left to right."""
    if len(channels) == 3:
        return Image.fromarray(np.ascontiguousarray(channels.transpose(1, 2, 0)))
    return in_grey(channels)


def in_grey(channels: Pixels) -> Image.Image:
    """Draw the channels of `[C, H, W]`, each in grey, from left to right."""
    return Image.fromarray(np.concatenate(list(channels), axis=1))


def bars(values: npt.NDArray[Any], largest: npt.NDArray[Any], signed: bool) -> Image.Image:
    """Draw numbers as bars, each relative to its `largest` size; from the middle if some are negative."""
    row, left, right = 22, 40, _WIDTH - 66
    shown = values[:MOST_NUMBERS]
    more = len(values) > len(shown)
    image = Image.new("RGB", (_WIDTH, row * (len(shown) + more) + 12), PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    zero = (left + right) // 2 if signed else left
    for n, value in enumerate(shown):
        top = 6 + row * n
        share = float(value) / float(largest[n]) if largest[n] else 0.0
        end = zero + round(share * (right - zero))
        draw.rectangle((min(zero, end), top + 4, max(zero, end), top + row - 5), fill=BAR)
        draw.text((left - 8, top + row / 2), str(n), font=font, fill=GREY, anchor="rm")
        draw.text((_WIDTH - 8, top + row / 2), f"{float(value):.3g}", font=font, fill=INK, anchor="rm")
    draw.line((zero, 4, zero, row * len(shown) + 8), fill=GREY)
    if more:
        text = f"and {len(values) - len(shown)} more numbers"
        draw.text((left, row * len(shown) + 12), text, font=font, fill=GREY, anchor="lt")
    return image


def _widened(image: Image.Image) -> Image.Image:
    """Enlarge a small image to about `_WIDTH` pixels, by whole numbers; reduce a large one."""
    factor = _WIDTH // image.width
    size = (
        (image.width * factor, image.height * factor)
        if factor
        else (_WIDTH, image.height * _WIDTH // image.width)
    )
    return image.resize(size, Image.Resampling.NEAREST if factor else Image.Resampling.BOX)


def _stack(above: Image.Image, below: Image.Image) -> Image.Image:
    parts = [_widened(each.convert("RGB")) for each in (above, below)]
    whole = Image.new("RGB", (_WIDTH, sum(part.height for part in parts) + 6), PAPER)
    whole.paste(parts[0], ((_WIDTH - parts[0].width) // 2, 0))
    whole.paste(parts[1], ((_WIDTH - parts[1].width) // 2, parts[0].height + 6))
    return whole
