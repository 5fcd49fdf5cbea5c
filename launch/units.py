"""Agent steps, durations and scores as people write them."""

from __future__ import annotations

import math
from fractions import Fraction


def parse_steps(text: str) -> int:
    """Read `200M`, `1.5M`, `30k` or `1600` as a number of agent steps. Raises ValueError in one line."""
    scale = {"k": 10**3, "m": 10**6, "b": 10**9}.get(text[-1:].lower(), 1)
    remedy = "write 200M, 30k or 1600"
    number = text[:-1] if scale > 1 else text
    try:
        finite = math.isfinite(float(number) * scale)
    except ValueError:
        finite = False
    if not finite:
        raise ValueError(f"'{text}' is not a number of agent steps; {remedy}")
    steps = Fraction(number) * scale  # exact, unlike the float
    if steps < 1:
        raise ValueError(f"'{text}' is less than one agent step; {remedy}")
    if steps.denominator > 1:
        raise ValueError(f"'{text}' is not a whole number of agent steps; {remedy}")
    return int(steps)


def format_steps(steps: int) -> str:
    """Return the shortest exact form that `parse_steps` reads: 200M, 1.5M, 30k, 1600."""
    for scale, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if steps >= scale and steps % (scale // 100) == 0:
            return f"{steps / scale:.15g}{letter}"
    return str(steps)


def format_bytes(number: int) -> str:
    """Return a size with two or three digits: 512 KiB, 1.5 MiB, 27 GiB."""
    size, units = number / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.{1 if size < 10 else 0}f} {units[0]}"


def count(number: int, noun: str) -> str:
    """Return 1 update, 1,203 updates."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_score(score: float, beside: float | None = None) -> str:
    """One decimal, two below 1 (many tasks score between -1 and 1); or as many as the score beside it has."""
    size = abs(score if beside is None else beside)
    return f"{score:,.{2 if 0 < size < 1 else 1}f}"


def format_rate(rate: float | None) -> str:
    """Format how many a second, with two digits where that is few: 1,203, 25, 2.4, 0.026."""
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.2g}"


def format_duration(seconds: float | None) -> str:
    """Return the two largest units of a duration: 45 s, 12 m 5 s, 3 h 20 m, 1 d 4 h."""
    if seconds is None:
        return "unknown"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_ago(seconds: float) -> str:
    """Say how long ago something was, or that the clock that says so was ahead of this one."""
    if seconds < 0:
        return f"{format_duration(-seconds)} ahead of this clock"
    return f"{format_duration(seconds)} ago"
