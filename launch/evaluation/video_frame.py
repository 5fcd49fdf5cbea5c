"""One picture of a video: the game's screen, and strips of what the memory did in the last seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

WIDTH, HEIGHT = 1280, 720
WINDOW = 150
"""Agent steps that the strips show."""
_SHARP = 2  # drawn larger by this factor, then reduced: smooth lines and letters
_SCREEN = (40, 40, 520, 680)  # left, top, right, bottom of what the game's screen may take
_LEFT, _RIGHT, _TOP, _BOTTOM = 626, 1240, 196, 664  # of the strips
_GAP = 42  # above each strip, for its title
INK, GREY, FAINT, PAPER = "#111827", "#6b7280", "#e5e7eb", "#ffffff"
LAYERS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#0891b2", "#be123c")
"""A colour a layer, from the first one on."""


@dataclass(frozen=True)
class Lines:
    """A strip of curves `[T, layers]` over time, or of one that belongs to no layer."""

    title: str
    unit: str
    values: Floats
    by_layer: bool = True
    highest: float | None = None
    """where the axis ends although values go beyond it"""

    @cached_property
    def axis(self) -> Axis:
        return axis(float(np.min(self.values)), float(self.highest or np.max(self.values)))


@dataclass(frozen=True)
class Heads:
    """A strip of values from 0 to 1, one row a head: `[T, layers, heads]`."""

    title: str
    unit: str
    values: Floats


Strip = Lines | Heads


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    step: float
    """between ticks"""

    def ticks(self) -> list[float]:
        first, last = math.ceil(self.low / self.step - 1e-9), math.floor(self.high / self.step + 1e-9)
        return [self.step * n for n in range(first, last + 1)]

    def height(self, value: float, top: float, bottom: float) -> float:
        """Return the row of a value where the axis goes from bottom to top."""
        return bottom - (value - self.low) / (self.high - self.low) * (bottom - top)


def axis(low: float, high: float) -> Axis:
    """Fit an axis to zero and the values, with up to four ticks at round numbers."""
    low, high = min(low, 0.0), max(high, 0.0)
    span = max(high - low, 1e-6)
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (0.2, 0.5, 1.0, 2.0, 5.0) if span <= 3 * factor * power)
    return Axis(low - 0.04 * span, low + 1.04 * span, step)


class Pictures:
    """Draws the steps of one game; what does not change from one to the next is drawn once."""

    def __init__(
        self,
        title: str,
        subtitle: str,
        screen_size: tuple[int, int],
        score: Sequence[float],
        begins: Sequence[bool],
        strips: Sequence[Strip],
        steps_per_second: float,
    ) -> None:
        self.score, self.begins, self.strips = score, np.asarray(begins), strips
        self.steps_per_second, self.seconds = steps_per_second, WINDOW / steps_per_second
        left, top, right, bottom = _SCREEN
        height, width = screen_size
        scale = max(1, min((right - left) // width, (bottom - top) // height))
        self._size = (width * scale, height * scale)
        self._corner = ((left + right - self._size[0]) // 2, (top + bottom - self._size[1]) // 2)
        spans = [2.0 if isinstance(strip, Heads) else 1.6 for strip in strips]
        unit = (_BOTTOM - _TOP - _GAP * (len(strips) - 1)) / max(sum(spans), 3.0)
        tops = [_TOP + sum(spans[:i]) * unit + _GAP * i for i in range(len(strips))]
        self._boxes = [(top, top + span * unit) for top, span in zip(tops, spans, strict=True)]
        self._background = self._draw_background(title, subtitle)

    def draw(self, step: int, screen: Pixels) -> Pixels:
        """Draw an agent step: screen `[height, width, 3]` -> picture `[720, 1280, 3]`."""
        image = self._background.copy()
        draw = ImageDraw.Draw(image)
        _text(draw, _RIGHT, 92, f"{self.score[step]:,.0f}", 54, INK, "rs")
        steps = np.arange(max(0, step - WINDOW + 1), step + 1)
        for strip, box in zip(self.strips, self._boxes, strict=True):
            if isinstance(strip, Heads):
                self._draw_heads(image, strip, box, steps)
            else:
                self._draw_lines(draw, strip, box, steps)
        if self._boxes:
            for begin in steps[self.begins[steps] & (steps > 0)]:
                x = self._x(step, begin - 0.5)
                for top, bottom in self._boxes:
                    _line(draw, [(x, top), (x, bottom)], GREY, 1.0)
                _text(draw, x + 5, self._boxes[-1][0] + 12, "reset", 15, GREY, "ls")
        picture = image.reduce(_SHARP)
        game = Image.fromarray(screen).resize(self._size, Image.Resampling.NEAREST)
        picture.paste(game, self._corner)
        return np.asarray(picture)

    def _x(self, step: int, at: Any) -> Any:
        """Return the column of step `at` when `step` is now."""
        return _RIGHT - (step - at) * (_RIGHT - _LEFT) / (WINDOW - 1)

    def _draw_background(self, title: str, subtitle: str) -> Image.Image:
        image = Image.new("RGB", (WIDTH * _SHARP, HEIGHT * _SHARP), PAPER)
        draw = ImageDraw.Draw(image)
        edge = 570
        _text(draw, edge, 80, title, 40, INK, "ls")
        _text(draw, edge, 112, subtitle, 19, GREY, "ls")
        _text(draw, _RIGHT, 116, "score", 19, GREY, "rs")
        for strip, (top, bottom) in zip(self.strips, self._boxes, strict=True):
            end = _text(draw, edge, top - 12, strip.title, 19, INK, "ls")
            _text(draw, end + 9, top - 12, strip.unit, 16, GREY, "ls")
            if isinstance(strip, Lines):
                for tick in strip.axis.ticks():
                    y = strip.axis.height(tick, top, bottom)
                    _line(draw, [(_LEFT, y), (_RIGHT, y)], GREY if tick == 0 else FAINT, 1.0)
                    _text(draw, _LEFT - 9, y, f"{tick:,.6g}", 15, GREY, "rm")
            else:
                self._draw_key(draw, top)
                for layer, (first, last) in enumerate(_groups(strip.values.shape[1], top, bottom)):
                    _text(draw, _LEFT - 9, (first + last) / 2, f"layer {layer + 1}", 15, _colour(layer), "rm")
        if self._boxes:
            ends = (0.0, f"{self.seconds:.0f} s ago", "ls"), (1.0, "now", "rs")
            for share, text, anchor in (*ends, (0.5, f"{self.seconds / 2:.0f} s", "ms")):
                x = _LEFT + share * (_RIGHT - _LEFT)
                _text(draw, x, self._boxes[-1][1] + 26, text, 15, GREY, anchor)
        return image

    def _draw_key(self, draw: ImageDraw.ImageDraw, top: float) -> None:
        """Draw the colours from 0 to 1 at the right end of a title."""
        right = _text(draw, _RIGHT, top - 12, "1", 15, GREY, "rs") - 7
        for n in range(60):
            x = right - 60 + n
            _line(draw, [(x, top - 23), (x, top - 12)], tuple(_heat(np.array(n / 59.0))), 1.0)
        _text(draw, right - 67, top - 12, "0", 15, GREY, "rs")

    def _draw_heads(
        self, image: Image.Image, strip: Heads, box: tuple[float, float], steps: npt.NDArray[np.int64]
    ) -> None:
        now = int(steps[-1])
        left = self._x(now, steps[0]) - (_RIGHT - _LEFT) / (WINDOW - 1)
        for layer, (first, last) in enumerate(_groups(strip.values.shape[1], *box)):
            colours = _heat(strip.values[steps, layer].T)
            size = (round((_RIGHT - max(left, _LEFT)) * _SHARP), round((last - first) * _SHARP))
            rows = Image.fromarray(colours).resize(size, Image.Resampling.NEAREST)
            image.paste(rows, (round(max(left, _LEFT) * _SHARP), round(first * _SHARP)))

    def _draw_lines(
        self, draw: ImageDraw.ImageDraw, strip: Lines, box: tuple[float, float], steps: npt.NDArray[np.int64]
    ) -> None:
        xs = self._x(int(steps[-1]), steps)
        right = float(_RIGHT)
        for layer in reversed(range(strip.values.shape[1])):
            colour = _colour(layer) if strip.by_layer else INK
            ys = [max(strip.axis.height(value, *box), box[0]) for value in strip.values[steps, layer]]
            _line(draw, list(zip(xs, ys, strict=True)), colour, 2.0)
            value = f"{strip.values[steps[-1], layer]:,.{_decimals(strip.axis)}f}"
            right = _text(draw, right, box[0] - 12, value, 19, colour, "rs") - 16


def _groups(layers: int, top: float, bottom: float) -> list[tuple[float, float]]:
    """Top and bottom of each layer's rows, with a gap between layers."""
    gap = 5.0
    height = (bottom - top - gap * (layers - 1)) / layers
    return [(top + n * (height + gap), top + n * (height + gap) + height) for n in range(layers)]


def _decimals(scale: Axis) -> int:
    """Return one decimal more than the ticks need."""
    return max(0, 1 - math.floor(math.log10(scale.step) + 1e-9))


def _colour(layer: int) -> str:
    return LAYERS[layer % len(LAYERS)]


_STOPS = np.array([[243, 244, 246], [147, 197, 253], [37, 99, 235], [23, 37, 84]], np.float64)


def _heat(values: Floats) -> Pixels:
    """Colours `[..., 3]` of values from 0, nearly white, to 1, dark blue."""
    places = np.linspace(0.0, 1.0, len(_STOPS))
    return np.rint(np.stack([np.interp(values, places, stops) for stops in _STOPS.T], -1)).astype(np.uint8)


@cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size * _SHARP)


def _text(
    draw: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int, colour: str, anchor: str
) -> float:
    """Draw text; returns the end of it that is away from the anchor."""
    width = draw.textlength(text, font=_font(size)) / _SHARP
    draw.text((x * _SHARP, y * _SHARP), text, font=_font(size), fill=colour, anchor=anchor)
    return x - width if anchor.startswith("r") else x + width


def _line(
    draw: ImageDraw.ImageDraw, points: Sequence[tuple[float, float]], colour: Any, width: float
) -> None:
    draw.line(
        [(x * _SHARP, y * _SHARP) for x, y in points], fill=colour, width=round(width * _SHARP), joint="curve"
    )
