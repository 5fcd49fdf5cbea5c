"""Folders that get a page with its pictures and tables, again and again, and in which a user may write, too.

A page ends with a line that says whether it is unchanged: one that somebody changed, or wrote, gets
another name instead of being written over.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from ..agents import files
from ..agents.reading import read_bytes

_SEAL = b"<!-- written by deltabeast; SHA-256 of all above: "
_MOST_BYTES = 1 << 28


class PageFolder:
    """A folder to write pages into; `say` hears what is set aside."""

    def __init__(self, folder: Path, say: Callable[[str], None], is_ours: bool) -> None:
        """is_ours: pictures and tables of the same names in it are earlier ones of ours."""
        self._folder, self._say, self._is_ours = folder, say, is_ours

    def write_page(self, name: str, text: str) -> None:
        """Write a page. Raises OSError."""
        path, content = self._folder / name, files.encoded(text)
        if os.path.lexists(path) and not is_as_written(path):
            self._set_aside(path)
        files.write(path, content + _SEAL + _digest(content) + b" -->\n")

    def write(self, name: str, content: str | bytes) -> None:
        """Write what belongs to a page. Raises OSError."""
        path = self._folder / name
        if os.path.lexists(path) and not self._is_ours:
            self._set_aside(path)
        files.write(path, content)

    def _set_aside(self, path: Path) -> None:
        aside = files.set_aside(path, "previous")
        self._say(f"{path} was changed, or is somebody else's: it is {aside.name} now")


def is_page(path: Path, mark: bytes) -> bool:
    """Return whether a page was written here, maybe changed since; `mark` is in those of earlier versions."""
    content = read_page(path)
    return _SEAL in content or mark in content


def is_as_written(path: Path) -> bool:
    """Return whether a page was written here and has not been changed."""
    content, seal, digest = read_page(path).rpartition(_SEAL)
    return bool(seal) and digest == _digest(content) + b" -->\n"


def read_page(path: Path) -> bytes:
    """Read a page, maybe changed since it was written; empty if that fails."""
    try:
        return read_bytes(path, _MOST_BYTES)
    except OSError:
        return b""


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
