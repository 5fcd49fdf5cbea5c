"""Values of a file as the types that options declare: nothing of them is ever read as a word.

Of YAML only plain values are read, within limits, each written out where it stands.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..agents.reading import MAX_DEPTH, check_limits, read_bytes
from .errors import UsageError
from .foreign import beginning

MOST_BYTES = 64 << 10
"""Options are short, and YAML takes a second to read so much."""

_ONE = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    Path: "a path",
}
"""what options of one value take"""


def read_options(declared: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a file by the names and with the types of a dataclass's fields; what is empty is left
    out.

    Raises ValueError in one line for a name that it does not have, or a value of another kind.
    """
    kinds = get_type_hints(declared)
    options = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(f"unknown option {key!r}{hint}")
        if value in (None, [], {}):
            continue
        try:
            options[name] = read_value(kinds[name], value)
        except ValueError as error:
            raise ValueError(f"{key} is {beginning(repr(value))}; it takes {error}") from error
    return options


def have_shape(declared: type, values: Mapping[str, Any]) -> bool:
    """Return whether values of a dataclass's fields are what these hold: one value, several, or named ones.

    Other versions may have other names and words; what is none of the fields is not looked at.
    """
    kinds = get_type_hints(declared)
    held_by: dict[Any, Any] = {dict: dict, tuple: list}
    return all(
        value is None or isinstance(value, held_by.get(get_origin(kinds[name]), str | int | float))
        for name, value in values.items()
        if name in kinds
    )


def read_value(kind: Any, value: object) -> Any:
    """Return a value of a file as an option's declared type. Raises ValueError that says what it takes.

    What stands for a number may be a word, as YAML has 1e-3, and a number may stand for a word.
    """
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not NoneType]
    if origin in (Union, UnionType):
        return read_value(parts[0], value)
    if origin is dict:
        return _named(value)
    if origin is tuple:
        return _several(value)
    if isinstance(value, bool) and {"on", "off"} <= set(parts):
        return "on" if value else "off"  # what YAML reads these words as
    if kind is bool and not isinstance(value, bool):
        raise ValueError(_ONE[bool])
    if isinstance(value, list | dict) or (isinstance(value, bool) and kind is not bool) or value is None:
        raise ValueError("one value")
    if origin is Literal:
        if value not in parts:
            raise ValueError(f"one of {', '.join(map(str, parts))}")
        return value
    return _one(kind, value)


def _one(kind: type, value: Any) -> Any:
    if kind is Path and value == "":  # would be the current folder
        raise ValueError(_ONE[Path])
    if kind in (str, Path):
        return kind(_word(str(value)))
    if kind is int and isinstance(value, float):
        raise ValueError(_ONE[int])
    try:
        return kind(value)
    except (ValueError, OverflowError):
        raise ValueError(_ONE[kind]) from None


def _several(value: object) -> tuple[str, ...]:
    """Return words, none of which could be taken for an option where they stand in a command."""
    words = [value] if isinstance(value, str | int | float) and not isinstance(value, bool) else value
    if not isinstance(words, list):
        raise ValueError("words")
    if not all(isinstance(word, str | int | float) and not isinstance(word, bool) for word in words):
        raise ValueError("words")
    return tuple(_no_option(str(word)) for word in words)


def _named(value: object) -> dict[str, Any]:
    """Return names with values: words that could not be taken for an option, numbers, true, false or none."""
    if not isinstance(value, dict):
        raise ValueError("names with values")
    for name, each in value.items():
        if not re.fullmatch(r"[^\W\d]\w*", str(name)):
            raise ValueError(f"names with values, and {name!r} is no name")
        if not isinstance(each, str | int | float | NoneType):
            raise ValueError(f"names with values, and {name} has several")
        if isinstance(each, str):
            _no_option(each)
    return dict(value)


def _no_option(word: str) -> str:
    if re.match(r"-(?![\d.])", word):
        raise ValueError("words that do not begin with -")
    return _word(word)


def _word(word: str) -> str:
    if "\0" in word:
        raise ValueError("words without a NUL")
    return word


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises OSError, ValueError for what is none or goes beyond the limits, and UsageError
    without the package that reads it."""
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path} is YAML, which needs: pip install pyyaml; or give JSON") from None

    class Loader(yaml.SafeLoader):
        """Refuses what stands for a part of the file, which could be written many times over, and depth."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("it has an alias (*name); write out what it stands for")
            if self.depth > MAX_DEPTH:
                raise ValueError(f"values stand more than {MAX_DEPTH} deep in one another")
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        return check_limits(yaml.load(read_bytes(path, MOST_BYTES), Loader))
    except (yaml.YAMLError, ArithmeticError) as error:
        raise ValueError(str(error)) from error
