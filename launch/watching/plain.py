"""Numbers as JSON has them: short, and null for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable


def rounded(value: float, digits: int = 4) -> float | None:
    """Return a number with so many significant digits; None for nan and infinities."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def each_rounded(values: Iterable[float], digits: int = 3) -> list[float | None]:
    return [rounded(value, digits) for value in values]


def in_ten_thousandths(values: Iterable[float]) -> list[int]:
    """Return finite fractions as whole hundredths of a percent."""
    return [round(10_000 * value) for value in values]
