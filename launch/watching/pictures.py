"""What is shown of a step: the game's screen, the image that an agent sees, or numbers for the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..evaluation.why_play import MOST_NUMBERS, side_by_side
from .plain import rounded


def screen(pixels: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """Return a game's screen in colour `[height, width, 3]` as a picture."""
    return _picture(Image.fromarray(pixels))


def seen(observation: npt.NDArray[Any]) -> dict[str, Any]:
    """Return what an agent sees: an image `[C, H, W]` as a picture, anything else as its first numbers."""
    if observation.ndim == 3:
        return _picture(side_by_side(observation))
    return {"numbers": [rounded(x) for x in observation.ravel()[:MOST_NUMBERS].tolist()]}


def _picture(image: Image.Image) -> dict[str, Any]:
    content = io.BytesIO()
    colours = image.getcolors(256) if image.mode == "RGB" else None
    if colours:  # an emulator has 128: a palette is exact, and a third of the size
        image = image.quantize(len(colours), Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    image.save(content, format="PNG", compress_level=6)
    return {"png": base64.b64encode(content.getvalue()).decode(), "size": list(image.size)}
