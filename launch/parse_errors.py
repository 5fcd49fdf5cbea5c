"""What is wrong with the words of a command, and what would be right, in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from .config import COMMANDS


def condense(box: str, arguments: Sequence[str]) -> str:
    """Reduce tyro's boxed message to what was wrong and what would be right."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    # Its frame is drawn with - | + where the output is not UTF-8.
    lines = [re.sub(r"^[│|] ?| *[│|]$|^[╭╰+][─-]* ?| ?[─-]*[╮╯+]$", "", line) for line in text.splitlines()]
    lines = [line.strip() for line in lines if line.strip(" ─-")]
    title, body = (lines[0].lower(), lines[1:]) if lines else ("wrong arguments", [])
    command = next((word for word in arguments if word in COMMANDS), None)
    help_of = f"`deltabeast {command} --help`" if command else "`deltabeast --help`"
    wrong = body[0].rstrip(".:") if body else title
    options = [line for line in body if re.match(r"-{1,2}\w", line)]
    if unknown := _unknown_option(arguments, command, help_of):
        return unknown
    if title == "unrecognized options":
        return _unexpected(body, command, help_of)
    if title == "missing subcommand" and command == "bench":
        return "nothing to measure given; say deltabeast bench kernels, bench env or bench throughput"
    if title == "missing subcommand":
        return f"no command given; say one of {', '.join(COMMANDS)}"
    if title == "required options":
        missing = next((line for line in body[1:] if not line.startswith("(")), "an argument")
        return f"{missing.split('  ')[0]} is missing; {help_of} shows what to give"
    if match := re.match(r"invalid choice (.+) for argument '(.+)'\. Expected one of \((.*)\)", wrong):
        value, name, choices = match.groups()
        names = re.findall(r"[\w-]+", choices)
        if "None" in names:  # an option that need not be given: tyro lists its choices in no order
            names = sorted(set(names) - {"None"})
        return f"{name} {value}; choose one of {', '.join(names)}"
    if match := re.match(r"Missing value for argument '(.+)'", wrong):
        return f"{match[1]} has no value; {help_of} shows what to give"
    if match := re.match(r"Error parsing (\S+): (.*)", wrong):
        expected = f"it takes {_takes(options[0])}" if options else f"see {help_of}"
        value = re.search(r"(?:literal for int\(\) with base 10|string to float): ('.*')", match[2])
        return f"{match[1]} {value[1]}; {expected}" if value else f"{match[1]}: cannot be read; {expected}"
    return f"{wrong[:1].lower()}{wrong[1:]}; see {help_of}"


def _unknown_option(arguments: Sequence[str], command: str | None, help_of: str) -> str | None:
    """Say which option the command does not have, and which was meant; None if it has all."""
    options = {"--help", "--version", *(_flags(COMMANDS[command]) if command else ())}
    given = (word.partition("=")[0] for word in arguments)
    flag = next(
        (word for word in given if word.startswith("--") and word.replace("_", "-") not in options), None
    )
    if flag is None:
        return None
    near = difflib.get_close_matches(flag, options, n=1, cutoff=0.65)
    near = near or [option for option in sorted(options) if flag == _initials(option)]
    hint = f"did you mean {near[0]}?" if near else f"{help_of} lists the options"
    option = flag.lstrip("-").replace("-", "_")
    if command in ("train", "probe") and option in _options_of_cores():
        hint = f"cores have it: --core-options {option} ..."
    return f"unknown option {flag}; {hint}"


def _initials(flag: str) -> str:
    """Shorten a flag as other trainers do: --lr."""
    return "--" + "".join(word[0] for word in flag.removeprefix("--").split("-"))


def _flags(config: Any) -> set[str]:
    """List the options of a command, those of its subcommands with them."""
    flags = set()
    for name, kind in get_type_hints(config).items():
        option = name.replace("_", "-")
        inner = [flag for each in get_args(kind) if is_dataclass(each) for flag in _flags(each)]
        flags |= set(inner) or {f"--{option}", *([f"--no-{option}"] if kind is bool else [])}
    return flags


def _unexpected(body: Sequence[str], command: str | None, help_of: str) -> str:
    misplaced = [line.partition(" (applied to")[0] for line in body if " (applied to" in line]
    given = misplaced or body[0].removeprefix("Unrecognized options:").strip().split(", ")
    if command is None:
        names = difflib.get_close_matches(given[0], COMMANDS, n=2, cutoff=0.6)
        hint = f"did you mean {' or '.join(names)}?" if names else f"say one of {', '.join(COMMANDS)}"
        return f"unknown command {given[0]}; {hint}"
    return f"unexpected {' '.join(given)}; {help_of} shows what to give"


def _options_of_cores() -> set[str]:
    from ..cores import core_names
    from ..cores.options import options_of
    from ..cores.registry import find_core

    return {option for name in core_names() for option in options_of(find_core(name))}


def _takes(option: str) -> str:
    """Describe what stands after an option's name in its help: `--episodes INT` takes a whole number."""
    names = {"INT": "a whole number", "FLOAT": "a number", "STR": "a word", "PATH": "a path"}
    kind = option.partition(" ")[2].strip()
    if kind.startswith("["):  # [STR INT [STR INT ...]], [INT [INT ...]]
        return "whole numbers" if kind.startswith("[INT") else "pairs of a name and a value"
    return names.get(kind.split("}|")[-1], kind or "no value")
