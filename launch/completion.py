"""`--print-completion SHELL`: what completes commands, options, names and paths in a shell."""

from __future__ import annotations

import ast
import re
from typing import Any

from .errors import UsageError

SHELLS = ("bash", "zsh", "fish")

_SPEC = "COMPLETION_SPEC = "
"""begins the line of tyro's scripts that holds all commands and options, as one Python literal"""


def shell_of(given: list[str]) -> str:
    """Return the shell that `--print-completion SHELL` names. Raises UsageError unless it is in `SHELLS`."""
    if len(given) != 2 or given[0] != "--print-completion" or given[1] not in SHELLS:
        raise UsageError("--print-completion has no shell; say bash, zsh or fish")
    return given[1]


def complete_names(script: str, shell: str) -> str:
    """Return tyro's script for a shell with the names of cores and games in it.

    In bash, paths are completed where it knows no word.
    """
    lines = script.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(_SPEC))
    literal = lines[at].removeprefix(_SPEC)
    # In fish it stands in a string between double quotes.
    spec = ast.literal_eval(re.sub(r'\\(["$\\])', r"\1", literal) if shell == "fish" else literal)
    _name(spec, _names())
    lines[at] = _SPEC + (re.sub(r'["$\\]', r"\\\g<0>", repr(spec)) if shell == "fish" else repr(spec))
    return "\n".join(lines).replace("complete -F", "complete -o default -F")


def _names() -> dict[str, list[str]]:
    from ..cores import core_names
    from ..envs import game_names

    cores, games = list(core_names()), game_names()
    return {"--core": cores, "--cores": cores, "--game": games, "--games": games}


def _name(command: dict[str, Any], names: dict[str, list[str]]) -> None:
    for option in command["options"]:
        # A break inside of an explanation would make an option of its next line.
        option["description"] = " ".join(option["description"].split())
        for flag in option["flags"]:
            if flag in names:
                option |= {"type": "choice", "choices": names[flag]}
        if "choices" in option:  # tyro's None is an option that is not given
            option["choices"] = [choice for choice in option["choices"] if choice != "None"]
    for subcommand in command["subcommands"].values():
        _name(subcommand, names)
