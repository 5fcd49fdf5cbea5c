"""What comes from elsewhere is read within limits, and from regular files alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from deltabeast.agents import reading
from deltabeast.agents.reading import Unreadable, check_limits, parse_json, read_bytes, read_json


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a device"])
def test_only_regular_files_are_opened_and_nothing_is_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(Unreadable, match="it is not a regular file"):
        read_bytes(path)


def test_a_file_is_read_whole_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    (tmp_path / "link").symlink_to(path)
    assert read_bytes(path, limit=10) == read_bytes(tmp_path / "link", limit=10) == b"x" * 10
    with pytest.raises(Unreadable, match="larger than 9 bytes"):
        read_bytes(path, limit=9)
    with path.open("ab") as file:
        file.truncate(1 << 40)  # which takes no room on the disk
    with pytest.raises(Unreadable, match="larger than 8,388,608 bytes"):
        read_json(path)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps(nested(33)), "more than 32 deep"),
        ("[" * 100_000, "more than 32 deep"),
        ('{"a":' * 100_000, "more than 32 deep"),
        (f"[{'0,' * 500_000}0]", "more than 500,000 values"),
        ("[" + "[]," * 250_000 + "[]]", "more than 500,000 values"),
        ("[1e999]", "expected a finite number, got inf"),
        ('{"a": [NaN]}', "expected a finite number, got nan"),
        ("-Infinity", "expected a finite number, got -inf"),
        (f"[{2**63}]", "more than 64 bits"),
        (f"[{-(2**63) - 1}]", "more than 64 bits"),
        (f"[1{'0' * 5000}]", "4300"),
        (f'["{"x" * 10_001}"]', "more than 10,000 characters"),
        (f'{{"{"x" * 10_001}": 1}}', "more than 10,000 characters"),
        ("{", "property name"),
        ("\ufeff{}", "BOM"),
    ],
    ids=range(15),
)
def test_json_beyond_a_limit_is_refused_in_one_line(content: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        parse_json(content.encode())
    assert len(str(raised.value)) < 200


def test_json_within_the_limits_is_as_it_was() -> None:
    value = {"a": [1, -(2**63), 2**63 - 1, 0.5, 1.7e308, True, None, "\x1b\udcff"], "": nested(30)}
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(nested(32)).encode()) == nested(32)
    assert parse_json(json.dumps({"x" * 10_000: "y" * 10_000}).encode()) == {"x" * 10_000: "y" * 10_000}
    assert len(parse_json(f"[{'0,' * 400_000}0]".encode())) == 400_001
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b"\xff\xfe{}")


def test_what_another_format_makes_besides_is_no_plain_value() -> None:
    for value in ({1: 2}, {"a": b"x"}, [(1,)], [{1}], object()):
        with pytest.raises(ValueError, match="put it in quotes"):
            check_limits(value)
    shared: Any = "x"
    for _ in range(6):
        shared = [shared] * 10  # a million of them, were it written out
    with pytest.raises(ValueError, match=f"more than {reading.MAX_VALUES:,} values"):
        check_limits(shared)
