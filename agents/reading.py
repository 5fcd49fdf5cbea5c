"""Reading what may be somebody else's: regular files alone, with limits on size, depth and numbers.

Every JSON of a run or of a checkpoint is read here, so that a small file can neither hang a command nor
exhaust the machine. Imports no torch: `launch/runs` reads runs without it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_BYTES = 8 << 20
"""of a JSON file; an evaluation of a thousand episodes has some 50 thousand"""
MOST_WEIGHTS = 2 << 30
"""bytes of another file of a checkpoint; those of published agents have some megabytes"""
MOST_VALUES = 500_000
DEEPEST = 32
"""values inside one another"""
LONGEST = 10_000
"""characters of a word"""
LARGEST = 2**63
"""Whole numbers lie below this, in size."""

_PLAIN = (str, bool, int, float, type(None))


class Unreadable(OSError):
    """A file that is not read, for what it is; the message says what."""


def open_regular(path: Path, most: int | None = None) -> BufferedReader:
    """Open a file for reading; nothing is waited for. Raises Unreadable for a pipe, a device or a folder, and
    for more bytes than `most`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(descriptor)
    is_regular = stat.S_ISREG(about.st_mode)
    if is_regular and (most is None or about.st_size <= most):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise Unreadable(f"it is larger than {most:,} bytes" if is_regular else "it is no regular file")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a whole file. Raises OSError; Unreadable if it is larger than `most` bytes or no regular file."""
    with open_regular(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def most_bytes(name: str) -> int:
    """Return how large a file of a checkpoint may be."""
    return MOST_BYTES if name.endswith(".json") else MOST_WEIGHTS


def sha256_of(path: Path, most: int) -> str:
    """Return a file's SHA-256 as hexadecimal digits, without holding it in memory. Raises as `read_bytes`."""
    with open_regular(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises OSError, or ValueError for what is no JSON or goes beyond the limits."""
    return parse_json(read_bytes(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if there is none that can be read."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def parse_json(content: bytes) -> Any:
    """Parse JSON, as UTF-8. Raises ValueError for what is none, or goes beyond the limits."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES:,} values")
    try:
        value = json.loads(content.decode())
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return bounded(value)


def bounded(value: Any) -> Any:
    """Return a value that was parsed. Raises ValueError unless it is made of words, finite numbers of at most
    64 bits, true, false, null, lists, and mappings by words, neither too long, too deep nor too many."""
    level, count = [value], 0
    for _ in range(DEEPEST):
        count += len(level)
        if count > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")
        below: list[Any] = []
        for each in level:
            if isinstance(each, list):
                below += each
            elif isinstance(each, dict):
                _check_names(each)
                below += each.values()
            else:
                _check_plain(each)
        if not below:
            return value
        level = below
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"values stand more than {DEEPEST} deep in one another"


def _check_names(mapping: dict[Any, Any]) -> None:
    for name in mapping:
        if not isinstance(name, str):
            raise ValueError(f"the name {name!r} is no word; put it in quotes")
        _check_plain(name)


def _check_plain(value: object) -> None:
    if not isinstance(value, _PLAIN):
        raise ValueError(f"{value!r} is no plain value; put it in quotes")
    if isinstance(value, str) and len(value) > LONGEST:
        raise ValueError(f"a word has more than {LONGEST:,} characters")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise ValueError("a whole number has more than 64 bits")
