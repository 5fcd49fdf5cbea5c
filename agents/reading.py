"""Reading untrusted files: regular files only, with limits on their size and on the values of JSON.

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

MAX_JSON_BYTES = 8 << 20
"""Largest JSON file, in bytes; an evaluation of a thousand episodes has some 50 thousand."""
MAX_BYTES = 2 << 30
"""Largest other file of a checkpoint, in bytes; those of published agents have some megabytes."""
MAX_VALUES = 500_000
"""Largest number of values in a JSON file, lists and objects included."""
MAX_DEPTH = 32
"""Deepest nesting of JSON values."""
MAX_STRING_LENGTH = 10_000
"""Longest string, in characters."""
INT_LIMIT = 2**63
"""Bound of integers: -INT_LIMIT <= n < INT_LIMIT."""

_PLAIN = (str, bool, int, float, type(None))


class Unreadable(OSError):
    """A file is refused for its type or size; the message says which."""


def open_regular(path: Path, limit: int | None = None) -> BufferedReader:
    """Open a regular file for reading, without blocking.

    Raises OSError; Unreadable for a pipe, a device or a folder, and for a file of more than `limit` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(descriptor)
    is_regular = stat.S_ISREG(about.st_mode)
    if is_regular and (limit is None or about.st_size <= limit):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise Unreadable(f"it is larger than {limit:,} bytes" if is_regular else "it is not a regular file")


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read a whole file. Raises OSError; Unreadable if it has more than `limit` bytes or is not regular."""
    with open_regular(path, limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def size_limit(name: str) -> int:
    """Return the size limit, in bytes, of a checkpoint's file of this name."""
    return MAX_JSON_BYTES if name.endswith(".json") else MAX_BYTES


def sha256_of(path: Path, limit: int) -> str:
    """Return a file's SHA-256 in hexadecimal, without loading it into memory. Raises as `read_bytes`."""
    with open_regular(path, limit) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises OSError, or ValueError if it is not JSON or exceeds a limit."""
    return parse_json(read_bytes(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if the file cannot be read or holds none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def parse_json(content: bytes) -> Any:
    """Parse JSON in UTF-8. Raises ValueError if it is not JSON or exceeds a limit."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
    try:
        value = json.loads(content.decode())
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return check_limits(value)


def check_limits(value: Any) -> Any:
    """Return a parsed value unchanged if it is within the limits.

    Raises ValueError unless it consists of strings, finite numbers, integers of at most 64 bits, booleans,
    None, lists, and dicts with string keys, within `MAX_STRING_LENGTH`, `MAX_DEPTH` and `MAX_VALUES`.
    """
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_VALUES:
            raise ValueError(f"it holds more than {MAX_VALUES:,} values")
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


_TOO_DEEP = f"values are nested more than {MAX_DEPTH} deep"


def _check_names(mapping: dict[Any, Any]) -> None:
    for name in mapping:
        if not isinstance(name, str):
            raise ValueError(f"expected text as a key, got {name!r}; put it in quotes")
        _check_plain(name)


def _check_plain(value: object) -> None:
    if not isinstance(value, _PLAIN):
        raise ValueError(f"expected text, a number, true, false or null, got {value!r}; put it in quotes")
    if isinstance(value, str) and len(value) > MAX_STRING_LENGTH:
        raise ValueError(f"a string has more than {MAX_STRING_LENGTH:,} characters")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    if isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT:
        raise ValueError("a whole number has more than 64 bits")
