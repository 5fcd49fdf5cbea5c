"""The rows of a logs.csv, one at a time: as written, or as a spreadsheet, a bad disk or a hand left them.

A spreadsheet may begin it with a mark, separate cells by semicolons or tabs, put them into quotes and write
numbers with a comma. What a killed process left after the last newline is no row, whatever it looks like.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...agents.reading import open_regular

_LONGEST = 65_536
"""bytes of a line: of a longer one the beginning is left out, and the rest is no row"""


class Log(NamedTuple):
    """An open log."""

    columns: list[str]
    """of each row: step, time, and metrics"""
    has_header: bool
    """whether the first line names the columns; if not, they are those of the version that reads it"""
    rows: Iterator[list[str] | None]
    """the cells of each row, of which step and time are numbers; None for a line that cannot be read"""


def open_rows(path: Path, metrics: Sequence[str], last_bytes: int | None = None) -> Log:
    """Open a log; `metrics` are columns that are expected after step and time. Raises OSError.

    With `last_bytes` the rows are the first one, and those in the last `last_bytes` bytes.
    """
    lines = _whole_lines(path, last_bytes)
    begin = list(itertools.islice(lines, 2))
    separator = max(",;\t", key=begin[0].count) if begin else ","
    header, *first = [_cells(line, separator) for line in begin] or [[]]
    columns = _columns(header, first[0] if first else None, ["step", "time", *metrics])
    has_header = columns[2:] == header[2:]
    rest = itertools.chain(begin[1:] if has_header else begin, lines)
    rows = (_row(cells, len(columns)) for line in rest if any(cells := _cells(line, separator)))
    return Log(columns, has_header, rows)


def csv_line(cells: Sequence[str]) -> str:
    """Write a line as `open_rows` reads it."""
    plain = ",".join(cells)
    if len(cells) > 1 and plain.count(",") == len(cells) - 1 and not any(c in plain for c in '"\r\n'):
        return f"{plain}\n"  # as below, ten times as fast
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _whole_lines(path: Path, last_bytes: int | None) -> Iterator[str]:
    with open_regular(path) as file:
        for number in itertools.count():
            if number == 2 and last_bytes is not None:
                begin = os.fstat(file.fileno()).st_size - last_bytes
                if begin > file.tell():
                    file.seek(begin)
                    file.readline(_LONGEST)  # the rest of a line
            line = file.readline(_LONGEST)
            if not line:
                return
            if line.endswith(b"\n"):
                yield line.decode("utf-8" if number else "utf-8-sig", "replace").rstrip("\r\n")


def _cells(line: str, separator: str) -> list[str]:
    if separator == ",":
        if '"' not in line:
            return line.split(",")
    else:
        line = line.replace(",", ".").replace(separator, ",")
    if line.count('"') % 2:  # a stray one would swallow what follows
        line = line.replace('"', "")
    return next(csv.reader([line]), [])


def _columns(header: list[str], row: list[str] | None, expected: list[str]) -> list[str]:
    """Return the header, its first two names mended; or what is expected, if that is what the rows have."""
    if row is not None and len(row) == len(expected) != len(header):
        return expected
    if header[:2] == ["step", "time"] or set(header[2:]) & set(expected[2:]):
        return ["step", "time", *header[2:]]
    return expected


def _row(cells: list[str], width: int) -> list[str] | None:
    if len(cells) != width:
        return None
    try:
        step, seconds = float(cells[0]), float(cells[1])
    except ValueError:
        return None
    if not (step.is_integer() and math.isfinite(seconds)):
        return None
    return [str(int(step)), *cells[1:]]
