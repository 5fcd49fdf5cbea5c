"""`--config FILE` and `--show-config`: options from a file, as if they were typed, and back into one."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from .config import ProbeConfig, TrainConfig
from .errors import UsageError
from .output import complain
from .runs.consent import may_name_code, needs_consent
from .runs.directory import no_run, option_words
from .runs.options import OPTIONS
from .runs.presets import PRESETS

KINDS: Mapping[str, type] = {"train": TrainConfig, "probe": ProbeConfig}
"""the commands that take a file"""

_OF_ONE_RUN = ("run_dir", "resume", "config", "show_config")
"""what is not taken from a run's own config.json: another run is to begin elsewhere"""

_INSTEAD = {
    **{"game": ("env",), "env": ("game",), "core": ("cores",), "cores": ("core",), "seeds": ("seed",)},
    **dict.fromkeys(("protocol", "frame_stack", "flicker", "video"), ("env",)),
}
"""the options of a file that typed ones displace besides themselves"""


def with_file(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the options of their `--config` file before those that were typed, which win.

    Raises UsageError in one line for a file that cannot be read or holds something else.
    """
    words = list(arguments)
    file = file_of(words)
    if file is None:
        return words
    return [words[0], *_words(words[0], file, words[1:]), *words[1:]]


def file_of(arguments: Sequence[str]) -> Path | None:
    """Return the file that `--config` names, or that of a run that it names; None if there is none.

    Raises UsageError if there are two.
    """
    words = list(arguments)
    if not words or words[0] not in KINDS:
        return None
    files = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--config"]
    files += [word.partition("=")[2] for word in words if word.startswith("--config=")]
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


def _words(command: str, path: Path, typed: Sequence[str]) -> list[str]:
    """Spell the options of a file, but for those that what was typed stands in the place of."""
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
    options = {}
    types = get_type_hints(KINDS[command])
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in types:
            near = difflib.get_close_matches(name, types, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"see `deltabeast {command} --help`"
            raise UsageError(f"{path}: unknown option {key!r}; {hint}")
        if isinstance(value, bool) and {"on", "off"} <= set(get_args(types[name])):
            value = "on" if value else "off"  # what YAML reads these words as
        if value is not None and (takes := _misfit(types[name], value)):
            raise UsageError(f"{path}: {key} is {value!r}; it takes {takes}")
        if value not in (None, [], {}) and not ("versions" in content and name in _OF_ONE_RUN):
            options[name] = value
    displaced = _displaced(options, typed)
    kept = {name: value for name, value in options.items() if name not in displaced}
    for name, whose in (("core_options", "core"), ("env_options", "environment")):
        if name in displaced.intersection(options) and not _values(typed, name):
            left = " ".join(option_words(name, options[name]))
            complain(
                f"{path}: {left} was for another {whose} and is left out; give what this one should have"
            )
    _ask_for_imports(path, kept)
    return [word for name, value in kept.items() for word in option_words(name, value)]


def _displaced(options: Mapping[str, Any], typed: Sequence[str]) -> set[str]:
    """List the options of a file that what was typed takes the place of."""
    displaced = {name for name in options if _values(typed, name)}
    displaced |= {name for name, others in _INSTEAD.items() if any(_values(typed, it) for it in others)}
    for preset in _values(typed, "preset"):
        displaced |= set(PRESETS.get(preset, ()))
    for engine in _values(typed, "engine"):
        displaced |= {name for name, option in OPTIONS.items() if option.only not in (None, engine)}
    cores = [*_values(typed, "core"), *_values(typed, "cores")]
    if cores and cores != [str(core) for core in options.get("cores") or [options.get("core")]]:
        displaced.add("core_options")
    envs = [*_values(typed, "game"), *_values(typed, "env")]
    if envs and envs != [str(options.get("game") or options.get("env"))]:
        displaced.add("env_options")
    return displaced


def _ask_for_imports(path: Path, options: Mapping[str, Any]) -> None:
    """Raise UsageError if options of a file would import code: nobody typed its name."""
    for option, names in options.items():
        for name in map(str, names if option == "cores" else [names]):
            if option in ("core", "cores", "env") and needs_consent(option.rstrip("s"), name):
                words = shlex.join(option_words(option, names))
                raise UsageError(
                    f"{path} has {option} {name}, which would be imported, and importing runs code; "
                    f"if you trust it, give {words}"
                )
    if "env" in options and may_name_code(options.get("env_options", {})):
        raise UsageError(
            f"{path} has options of the environment that could name code to import, and importing runs code; "
            f"if you trust them, give {shlex.join(option_words('env', options['env']))}"
        )


def _values(typed: Sequence[str], option: str) -> list[str]:
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


def _misfit(kind: Any, value: object) -> str | None:
    """Say what an option takes if a value is of another shape; None if it may be right."""
    shape = get_origin(kind)
    if shape is dict:
        return None if isinstance(value, dict) else "names with values"
    if kind is bool:
        return None if isinstance(value, bool) else "true or false"
    wrong = (bool, dict) if shape is tuple else (bool, dict, list)
    return ("words" if shape is tuple else "one value") if isinstance(value, wrong) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read {path}: {reason}; give a run's config.json, or YAML") from error
    is_yaml = path.suffix in (".yaml", ".yml")
    try:
        content = _yaml(path, text) if is_yaml else json.loads(text)
    except ValueError as error:
        kind = "YAML" if is_yaml else "JSON (YAML is read from .yaml)"
        raise UsageError(f"{path} is no {kind}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no options; give names and values, such as a run's config.json")
    return content


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{path} is YAML, which needs: pip install 'deltabeast[yaml]'; or give JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
