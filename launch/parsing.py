"""From the words of a command to its options."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Union, get_origin, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from .completion import complete_names, shell_of
from .config import COMMANDS, TrainConfig
from .config_file import begin_with, taken_from_file, typed_values
from .errors import UsageError
from .output import first_sentence
from .parse_errors import condense
from .runs.directory import chosen_preset

DESCRIPTION = """Train, evaluate and compare Atari agents whose memory is a fast weight programmer.

To train, or to go on where a run stopped: deltabeast train --game gopher --core rdn --steps 200M

To score a saved agent: deltabeast eval runs/gopher/rdn/seed-1

To compare games, cores and seeds: deltabeast compare runs, and tensorboard --logdir runs

Steps are agent steps: one action chosen, 4 emulator frames with the usual frame skip.

deltabeast --version says which version and commit this is, --print-completion bash (or zsh, fish) prints what
completes commands and options in a shell."""


def parse(arguments: Sequence[str]) -> Any:
    """Return the configuration of the command that the arguments name. Raises UsageError in one line."""
    _check_empty(arguments)
    _check_pairs(arguments)
    options = taken_from_file(arguments)
    begun = begin_with(arguments[0], options) if options else None
    try:
        config = _tyro(arguments, begun)
        _check_several(arguments, config)
        if isinstance(config, TrainConfig) and (preset := chosen_preset(config)):
            return _tyro(arguments, begin_with("train", {**options, "preset": preset}))
        return config
    except SystemExit as exit_:
        if exit_.code in (0, None):  # --help
            raise
        raise UsageError(_parse_error(arguments, begun)) from None


def completion(given: Sequence[str]) -> str:
    """Return the script that `--print-completion SHELL` asks for. Raises UsageError for another shell."""
    script = io.StringIO()
    shell = shell_of(list(given))
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        _tyro(["--tyro-print-completion", shell])
    explained = {name: first_sentence(kind.__doc__) for name, kind in COMMANDS.items()}
    return complete_names(script.getvalue(), shell, explained)


def _check_empty(arguments: Sequence[str]) -> None:
    """Raise UsageError for an empty word, such as a shell variable that is not set.

    As a path it would be the current folder.
    """
    for before, word in pairwise(["", *arguments]):
        option, equals, value = word.partition("=")
        if not word or (word.startswith("--") and equals and not value):
            which = option or (f"the argument after {before}" if before else "the first argument")
            raise UsageError(f"{which} is empty; give a value (is a shell variable unset?)")


def _check_pairs(arguments: Sequence[str]) -> None:
    """Raise UsageError for a name without a value, or given twice, in an option of names and values."""
    options = COMMANDS.get(arguments[0]) if arguments else None
    given = [word.partition("=")[0].replace("_", "-") for word in arguments]
    for option, kind in get_type_hints(options).items() if options else ():
        flag = f"--{option.replace('_', '-')}"
        if get_origin(kind) is not dict or flag not in given:
            continue
        last = len(given) - 1 - given[::-1].index(flag)  # `_check_several` refuses others
        words = typed_values(arguments[last:], option)
        if "layers" in words[::2] and (layers := _divided_by_spaces(words)):
            raise UsageError(f"{flag}: layers are one word, with commas between: layers {','.join(layers)}")
        if len(words) % 2:
            remedy = "pairs of a name and a value"
            if "layers" in words and any(":" in word for word in words):
                remedy = "a layer's options without spaces: kda:short_conv=4:head_norm=true"
            raise UsageError(f"{flag}: {words[-1]} has no value; give {remedy}")
        if twice := _repeated(words[::2]):
            raise UsageError(f"{flag}: {twice} is given twice; give one value for it")


def _divided_by_spaces(words: Sequence[str]) -> list[str]:
    """Return the cores in the words after `layers`, if they are in more than one: no option is named so."""
    from ..cores import core_name, core_names

    def names_a_core(layer: str) -> bool:
        return not layer or core_name(layer.partition(":")[0]) in core_names()

    divided = [word.split(",") for word in words[words.index("layers") + 1 :]]
    of_cores = takewhile(lambda parts: all(map(names_a_core, parts)), divided)
    layers = [[part for part in parts if part] for parts in of_cores]
    return [name for names in layers for name in names] if len(layers) > 1 else []


def _check_several(arguments: Sequence[str], config: Any) -> None:
    """Raise UsageError for an option of several values that is given twice, has none, or one of them twice.

    Of options of the same name the last one would count, and one without values would count for nothing.
    """
    given = [word.partition("=")[0].replace("_", "-") for word in arguments]
    what = getattr(config, "what", config)
    for option, kind in get_type_hints(type(what)).items():
        flag = f"--{option.replace('_', '-')}"
        if get_origin(kind) not in (dict, tuple) or flag not in given:
            continue
        if given.count(flag) > 1:
            raise UsageError(f"{flag} is given twice; give all its values after one {flag}")
        if not typed_values(arguments, option):
            raise UsageError(f"{flag} has no value; `deltabeast {arguments[0]} --help` shows what to give")
        if get_origin(kind) is tuple and (twice := _repeated(getattr(what, option))) is not None:
            raise UsageError(f"{flag}: {twice} is given twice; give it once")


def _repeated(values: Sequence[Any]) -> Any:
    """Return the first value that occurs twice; None if each occurs once."""
    return next((value for value in values if values.count(value) > 1), None)


def _tyro(arguments: Sequence[str], begun: Any = None, stderr: io.StringIO | None = None) -> Any:
    """Parse with tyro; `begun` has the defaults of its command, if not those that the class declares."""
    # Of a mapping that is not empty tyro would make an option for every name in it.
    mappings = {} if begun is None else {k: v for k, v in vars(begun).items() if isinstance(v, dict)}
    plain = begun and replace(begun, **{name: {} for name in mappings})
    defaults = {type(plain): {"default": plain}} if plain else {}
    kinds = tuple(
        Annotated[kind, subcommand(name, **defaults.get(kind, {}))] for name, kind in COMMANDS.items()
    )
    command: Any = Union[kinds]  # noqa: UP007
    with contextlib.redirect_stderr(stderr or io.StringIO()):
        config = tyro.cli(
            command,
            prog="deltabeast",
            description=DESCRIPTION,
            args=list(arguments),
            config=(OmitArgPrefixes, OmitSubcommandPrefixes),
        )
    for name, value in vars(config).items():
        if isinstance(value, Path) and str(value).startswith("~"):  # which a shell leaves in --run-dir=~/x
            setattr(config, name, value.expanduser())
    for name, value in mappings.items():
        if not getattr(config, name):
            setattr(config, name, value)
    return config


def _parse_error(arguments: Sequence[str], begun: Any = None) -> str:
    """Return what tyro says of the arguments, as one line."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "1000"  # its box breaks no line, so no word
    stderr = io.StringIO()
    try:
        with contextlib.suppress(SystemExit):
            _tyro(arguments, begun, stderr)
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return condense(stderr.getvalue(), arguments)
