"""Text of an environment's, in one line of limited length."""

from __future__ import annotations


def brief(text: object, most: int | None = None) -> str:
    """Return text as one line, cut to `most` characters if that is given."""
    line = " ".join(str(text).split())
    return line if most is None or len(line) <= most else f"{line[:most]}..."
