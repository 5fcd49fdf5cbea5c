"""`--print-completion SHELL`: what completes commands, options, names and paths in a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from .errors import UsageError

SHELLS = ("bash", "zsh", "fish")

_SPEC = "COMPLETION_SPEC = "
"""begins the line of tyro's scripts that holds all commands and options, as one Python literal"""
_PATHS = "__TYRO_COMPLETE_FILES__"
"""what a shell is told to complete paths by; tyro says it of options alone, not of what stands by itself"""
_CHANGES = (
    ("words, current_index, COMPLETION_SPEC)", f"words, current_index, COMPLETION_SPEC) or ['{_PATHS}']"),
    (  # `cur` has the words before it in it, lest a colon divides them
        'COMPREPLY=($(compgen -f -- "$cur"))',
        "compopt -o filenames 2> /dev/null; local IFS=$'\\n'\n"
        '    COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))',
    ),
    (  # after several values of one option comes another
        'if nargs in ("+", "*") or (',
        'if not current_word.startswith("-") and nargs in ("+", "*") or (',
    ),
    ("$words $current)", "$words (commandline -ct) $current)"),  # fish asks what is there for any word
)
"""in tyro's scripts: complete paths wherever no word is known, options after values, and in fish any word"""


def shell_of(given: list[str]) -> str:
    """Return the shell that `--print-completion SHELL` names. Raises UsageError unless it is in `SHELLS`."""
    words = given[given.index("--print-completion") + 1 :]
    if len(given) != 2 or not words or words[0] not in SHELLS:
        wrong = f"--print-completion {' '.join(words)}" if words else "--print-completion has no shell"
        raise UsageError(f"{wrong}; say --print-completion bash, zsh or fish")
    return words[0]


def complete_names(script: str, shell: str, explained: Mapping[str, str]) -> str:
    """Return tyro's script for a shell with the names of cores and games in it, and paths.

    `explained` says in a sentence what a command does.
    """
    lines = script.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(_SPEC))
    literal = lines[at].removeprefix(_SPEC)
    # In fish it stands in a string between double quotes.
    spec = ast.literal_eval(re.sub(r'\\(["$\\])', r"\1", literal) if shell == "fish" else literal)
    names = _names()
    _name(spec, names)
    for command, explanation in explained.items():
        spec["subcommands"][command]["description"] = explanation
    spec["subcommands"]["cores"]["subcommands"] = {
        core: {"description": core, "options": [], "subcommands": {}, "frontier_groups": []}
        for core in names["--core"]
    }
    lines[at] = _SPEC + (_quoted(repr(spec)) if shell == "fish" else repr(spec))
    script = "\n".join(lines)
    for old, new in _CHANGES:
        script = script.replace(old, new)
        if _quoted(old) != old:
            script = script.replace(_quoted(old), _quoted(new))
    return script


def _quoted(text: str) -> str:
    """Write text as it stands between double quotes in fish."""
    return re.sub(r'["$\\]', r"\\\g<0>", text)


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
