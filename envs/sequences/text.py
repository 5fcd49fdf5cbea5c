"""Text from files, as one long sequence of bytes or words: predict the next one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from ..checks import check_range
from .sequences import Integers, Sequences

END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
PARTS = ("train", "valid", "test")
MOST_WORDS = 100_000
"""beyond which a head of as many outputs is hopeless without an approximation"""
_SHARES = (0.9, 0.95)


@dataclass(frozen=True)
class Text:
    """A file, of which the last tenth is halved for validation and test, or a folder with a file for each, in
    whose names `train`, `valid` and `test` stand (WikiText-103: wiki.train.tokens).

    level: byte, or word: what stands between blanks, with a word for the end of each line. The vocabulary is
    that of the training part, cut to the `words` most frequent ones (0 for all). Others are unknown. `span`
    steps are learned from at once.
    """

    path: str
    level: Literal["byte", "word"] = "byte"
    words: int = 0
    span: int = 128

    def __post_init__(self) -> None:
        if self.words < 0 or (self.words and self.level == "byte"):
            raise ValueError(f"words is {self.words}; give a number of words at level word, or 0 for all")
        check_range("span", self.span, 1)
        if not all(len(part) > 1 for part in self._encoded):
            raise ValueError(
                f"{self.path} is too short: each of {', '.join(PARTS)} needs two tokens, and of one file the "
                "last tenth is halved for the last two"
            )
        if self.classes > MOST_WORDS:
            raise ValueError(
                f"{self.path} has {self.classes:,} different words; keep the most frequent ones, for "
                "example --task-options words 20000"
            )

    @property
    def symbols(self) -> tuple[int, ...]:
        return (self.classes,)

    @property
    def classes(self) -> int:
        return 256 if self.level == "byte" else len(self._numbers)

    @cached_property
    def digest(self) -> str:
        """A checksum of what is read."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self._encoded)).hexdigest()

    def part(self, name: str) -> Integers:
        """Return the tokens of `train`, `valid` or `test`."""
        return self._encoded[PARTS.index(name)]

    @cached_property
    def _read(self) -> list[bytes]:
        path = Path(self.path)
        try:
            if path.is_dir():
                return [_only(path, name).read_bytes() for name in PARTS]
            if path.exists() and not path.is_file():
                raise ValueError(f"{path} is a pipe or a device; give a file")
            content = path.read_bytes()
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        if not content:
            raise ValueError(f"{path} is empty")
        first, second = (int(share * len(content)) for share in _SHARES)
        return [content[:first], content[first:second], content[second:]]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        counts = Counter(_words(self._read[0]))
        counts.pop(UNKNOWN, None)
        vocabulary = [word for word, _ in counts.most_common(self.words or None)]
        return {word: number for number, word in enumerate([UNKNOWN, *vocabulary])}

    @cached_property
    def _encoded(self) -> list[Integers]:
        if self.level == "byte":
            return [np.frombuffer(part, np.uint8).astype(np.int64) for part in self._read]
        numbers = self._numbers
        return [np.fromiter((numbers.get(word, 0) for word in _words(part)), np.int64) for part in self._read]


def _only(folder: Path, name: str) -> Path:
    found = [path for path in sorted(folder.iterdir()) if name in path.name and path.is_file()]
    if len(found) != 1:
        what = "no file" if not found else f"{len(found)} files"
        raise ValueError(f"{folder} has {what} with {name} in the name; it needs one")
    return found[0]


def _words(content: bytes) -> Iterable[str]:
    for line in content.decode(errors="replace").removesuffix("\n").split("\n"):
        yield from line.split()
        yield END_OF_LINE


def columns(tokens: Integers, batch: int) -> tuple[Integers, Integers]:
    """Cut a sequence into `batch` contiguous columns `[steps, batch]`; return what is read and what follows
    it."""
    steps = (len(tokens) - 1) // batch
    if steps < 1:
        raise ValueError(
            f"a part of {len(tokens):,} tokens is too short for {batch:,} columns; give a longer text or a "
            "smaller --batch-size"
        )
    read, following = (tokens[start : start + steps * batch] for start in (0, 1))
    return read.reshape(batch, steps).T.copy(), following.reshape(batch, steps).T.copy()


def span(read: Integers, following: Integers, start: int, length: int) -> Sequences:
    """Return the steps from `start` on; only the first of all begins a sequence."""
    rows = slice(start, start + length)
    reset = np.zeros(read[rows].shape, bool)
    reset[0] = start == 0
    return Sequences(read[rows], reset, following[rows])
