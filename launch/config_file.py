"""`--config FILE` and `--show-config`: options from a file, beneath those that are typed, and back into one.

What a file holds is checked against the types that options declare, and never becomes a word of the command.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tyro import MISSING

from ..agents.reading import read_json
from .config import ProbeConfig, TrainConfig
from .errors import UsageError
from .output import complain
from .runs.consent import may_name_code, needs_consent
from .runs.directory import no_run, option_words
from .runs.mine import is_mine
from .runs.options import FORMER, OPTIONS
from .runs.presets import PRESETS, begun_with, preset_config
from .values import read_options, read_yaml

KINDS: Mapping[str, type] = {"train": TrainConfig, "probe": ProbeConfig}
"""the commands that take a file"""

_OF_ONE_RUN = ("run_dir", "resume", "config", "show_config")
"""what is not taken from a run's own config.json: another run is to begin elsewhere"""

_INSTEAD = {
    **{"game": ("env",), "env": ("game",), "core": ("cores",), "cores": ("core",), "seeds": ("seed",)},
    **dict.fromkeys(("protocol", "frame_stack", "flicker", "blink", "num_actions", "video"), ("env",)),
}
"""further options of a file that a typed one overrides"""

_REACHES_OUT = {
    "ray_address": "Ray unpickles what answers there, which runs code",
    "track": "the log would be sent to that service",
    "run_dir": "the run would be written there",
}
"""options that a file may have only where they are typed too, and why"""


def taken_from_file(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of the `--config` file, except those that typed options override.

    Raises UsageError in one line for a file that cannot be read or holds something else.
    """
    file = file_of(arguments)
    return {} if file is None else _options(arguments[0], file, arguments[1:])


def begin_with(command: str, options: Mapping[str, Any]) -> Any:
    """Return what a command is parsed upon: its defaults, beneath their preset's, beneath these options."""
    if command == "probe":
        return ProbeConfig(**{"task": MISSING, **options})
    return replace(preset_config(options.get("preset")), **options)


def file_of(arguments: Sequence[str]) -> Path | None:
    """Return the file that `--config` names, or that of a run that it names; None if there is none.

    Raises UsageError if there are two.
    """
    if not arguments or arguments[0] not in KINDS:
        return None
    files = typed_values(arguments, "config")
    if len(files) > 1:
        raise UsageError(f"--config {files[0]} and --config {files[1]}: give one of them")
    if not files:
        return None
    path = Path(files[0])
    if not path.is_dir():
        return path
    if not (path / "config.json").exists():
        raise UsageError(no_run(path))
    return path / "config.json"


def show_config(command: str, config: TrainConfig | ProbeConfig) -> str:
    """Return the configuration as JSON that `--config` takes."""
    settings = asdict(config)
    for name in ("config", "show_config"):
        del settings[name]
    return json.dumps({"command": command, "config": settings}, indent=2, default=str)


def _options(command: str, path: Path, typed: Sequence[str]) -> dict[str, Any]:
    """Return the options of a file that hold beside what was typed. Raises UsageError."""
    content = _read(path)
    kind = content.get("command", command)
    if kind != command:
        remedy = (
            f"say deltabeast {kind} --config {path}" if kind in KINDS else f"give one of {' or '.join(KINDS)}"
        )
        raise UsageError(f"{path} holds a configuration of {kind}; {remedy}")
    values = content.get("config", content)
    if not isinstance(values, dict):
        raise UsageError(f"{path}: config is {values!r}; give options and their values")
    if "versions" in content:
        values = _of_run(command, values)
    try:
        options = read_options(KINDS[command], values)
    except ValueError as error:
        see = f"; see `deltabeast {command} --help`" if ";" not in str(error) else ""
        raise UsageError(f"{path}: {error}{see}") from error
    displaced = _displaced(options, typed)
    for name, whose in (("core_options", "core"), ("env_options", "environment")):
        if name in displaced.intersection(options) and not typed_values(typed, name):
            left = " ".join(option_words(name, options[name]))
            complain(
                f"{path}: {left} was for another {whose} and is left out; give what this one should have"
            )
    options = {name: value for name, value in options.items() if name not in displaced}
    _ask_for_consent(path, options)
    return options


def _of_run(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what another run should have that is to be as this one is, which may be older than an option."""
    values = {name: value for name, value in values.items() if name not in _OF_ONE_RUN}
    if command != "train":
        return values
    return {**FORMER, **values, "preset": begun_with(values) or ("none" if values.get("env") else None)}


def _displaced(options: Mapping[str, Any], typed: Sequence[str]) -> set[str]:
    """List the options of a file that what was typed takes the place of."""
    displaced = {name for name in options if typed_values(typed, name)}
    displaced |= {name for name, others in _INSTEAD.items() if any(typed_values(typed, it) for it in others)}
    for preset in typed_values(typed, "preset"):
        displaced |= set(PRESETS.get(preset, ()))
    for engine in typed_values(typed, "engine"):
        displaced |= {name for name, option in OPTIONS.items() if option.only not in (None, engine)}
    cores = [*typed_values(typed, "core"), *typed_values(typed, "cores")]
    if cores and cores != [str(core) for core in options.get("cores") or [options.get("core")]]:
        displaced.add("core_options")
    envs = [*typed_values(typed, "game"), *typed_values(typed, "env")]
    if envs and envs != [str(options.get("game") or options.get("env"))]:
        displaced.add("env_options")
    return displaced


def _ask_for_consent(path: Path, options: Mapping[str, Any]) -> None:
    """Raise UsageError for what nobody typed: code that would be imported, or somewhere to connect or write.

    A run that this user began here may go on where it was, and import what it did in the same folder.
    """
    for option in ("core", "cores", "env"):
        for name in _names(options.get(option)):
            if needs_consent(option.rstrip("s"), name) and not is_mine(path, from_here=True):
                raise UsageError(
                    f"{path} has {option} {name}, which would be imported, and importing runs code; "
                    f"if you trust it, give {shlex.join(option_words(option, options[option]))}"
                )
    names_code = "env" in options and may_name_code(options.get("env_options", {}))
    if names_code and not is_mine(path, from_here=True):
        raise UsageError(
            f"{path} has options of the environment that could name code to import, and importing runs code; "
            f"if you trust them, give {shlex.join(option_words('env', options['env']))}"
        )
    for option, why in _REACHES_OUT.items():
        if option in options and not is_mine(path):
            words = shlex.join(option_words(option, options[option]))
            raise UsageError(f"{path} has {option} {options[option]}: {why}; if you want that, give {words}")


def _names(value: Any) -> list[str]:
    return list(value) if isinstance(value, tuple) else [value] if value else []


def typed_values(typed: Sequence[str], option: str) -> list[str]:
    """Return the words that were typed for an option, as `--option word word` or `--option=word`."""
    flags = {f"--{option}", f"--{option.replace('_', '-')}"}
    values, open_ = [], False
    for word in typed:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            open_ = flag in flags
            values += [value] if open_ and equals else []
        elif open_:
            values.append(word)
    return values


def _read(path: Path) -> dict[str, Any]:
    is_yaml = path.suffix in (".yaml", ".yml")
    try:
        content = read_yaml(path) if is_yaml else read_json(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot read {path}: {reason}; give a run's config.json, or YAML") from error
    except UsageError:
        raise
    except ValueError as error:
        kind = "YAML" if is_yaml else "JSON (YAML is read from .yaml)"
        raise UsageError(f"{path} is no {kind}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no options; give names and values, such as a run's config.json")
    return content
