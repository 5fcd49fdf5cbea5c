"""What a viewer may ask for: typed values, parsed from the JSON that a page sends."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from ...agents.reading import parse_json

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors of the game's own speed."""


class Refused(ValueError):
    """A command that cannot be followed; the message says why, in one line."""


@dataclass(frozen=True)
class Pause:
    on: bool


@dataclass(frozen=True)
class Step:
    """One step, of a game that stands still."""


@dataclass(frozen=True)
class Speed:
    factor: float


@dataclass(frozen=True)
class Restart:
    """Begin anew, all agents from one seed."""

    seed: int


@dataclass(frozen=True)
class Wipe:
    """Let the core begin the next step from its initial state."""

    seat: int


@dataclass(frozen=True)
class Undo:
    """Take back what the latest step wrote."""

    seat: int


@dataclass(frozen=True)
class Transplant:
    """Go on with the memory of the agent beside."""

    seat: int


@dataclass(frozen=True)
class UseCheckpoint:
    """Go on from here with another checkpoint of the run, and the memory as it is."""

    seat: int
    step: int


Command: TypeAlias = Pause | Step | Speed | Restart | Wipe | Undo | Transplant | UseCheckpoint
KINDS: dict[str, type[Command]] = {
    "pause": Pause,
    "step": Step,
    "speed": Speed,
    "restart": Restart,
    "wipe": Wipe,
    "undo": Undo,
    "transplant": Transplant,
    "checkpoint": UseCheckpoint,
}
"""Commands by the word that stands in `do`."""


_FORMS = {
    "bool": "true or false",
    "int": "a whole number from 0 to 2,147,483,647",
    "float": "a number",
}


def parse_command(content: bytes) -> Command:
    """Parse a command such as `{"do": "wipe", "seat": 0}`. Raises Refused."""
    try:
        given: Any = parse_json(content)
    except ValueError as error:
        raise Refused(f"no JSON: {error}") from error
    word = given.get("do") if isinstance(given, dict) else None
    if not isinstance(word, str) or word not in KINDS:
        raise Refused(f"no command; give an object whose do is one of {', '.join(KINDS)}")
    kind = KINDS[word]
    wanted = {field.name: str(field.type) for field in fields(kind)}
    if given.keys() - {"do"} != wanted.keys() or not all(_is(given[name], of) for name, of in wanted.items()):
        form = ", ".join(f"{name} ({_FORMS[of]})" for name, of in wanted.items())
        raise Refused(f"{word}: give {form or 'nothing else'}")
    return kind(**{name: given[name] for name in wanted})


def _is(value: object, kind: str) -> bool:
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
        case _:
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
