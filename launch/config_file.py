"""`--config FILE` and `--show-config`: options from a file, as if they were typed, and back into one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from .config import ProbeConfig, TrainConfig
from .errors import UsageError
from .runs.directory import option_words

KINDS: Mapping[str, type] = {"train": TrainConfig, "probe": ProbeConfig}
"""the commands that take a file"""

_OF_ONE_RUN = ("run_dir", "resume", "config", "show_config")
"""what is not taken from a run's own config.json: another run is to begin elsewhere"""

_INSTEAD = {"game": ("env",), "env": ("game",), "core_options": ("core", "cores"), "core": ("cores",)}
"""what typed options displace besides themselves: another environment, another core with its options"""


def with_file(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the options of their `--config` file before those that were typed, which win.

    Raises UsageError in one line for a file that cannot be read or holds something else.
    """
    words = list(arguments)
    file = file_of(words)
    if file is None:
        return words
    typed = {word.partition("=")[0] for word in words}
    return [words[0], *_words(words[0], file, typed), *words[1:]]


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
    return path / "config.json" if path.is_dir() else path


def show_config(command: str, config: TrainConfig | ProbeConfig) -> str:
    """Return the configuration as JSON that `--config` takes."""
    settings = asdict(config)
    for name in ("config", "show_config"):
        del settings[name]
    return json.dumps({"command": command, "config": settings}, indent=2, default=str)


def _words(command: str, path: Path, typed: Collection[str]) -> list[str]:
    """Spell the options of a file, but for those that what was typed stands in the place of."""
    content = _read(path)
    kind = content.get("command", command)
    if kind != command:
        raise UsageError(f"{path} holds a configuration of {kind}; say deltabeast {kind} --config {path}")
    values = content.get("config", content)
    if not isinstance(values, dict):
        raise UsageError(f"{path}: config is {values!r}; give options and their values")
    known = [field.name for field in fields(KINDS[command])]
    types, words = get_type_hints(KINDS[command]), []
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"see `deltabeast {command} --help`"
            raise UsageError(f"{path}: unknown option {key!r}; {hint}")
        if value is not None and (takes := _misfit(types[name], value)):
            raise UsageError(f"{path}: {key} is {value!r}; it takes {takes}")
        if value in (None, [], {}) or ("versions" in content and name in _OF_ONE_RUN):
            continue
        if any(f"--{other}" in typed for other in _INSTEAD.get(name, ())):
            continue
        words += option_words(name, value)
    return words


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
    try:
        content = _yaml(path, text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{path} is neither JSON nor YAML (.yaml): {' '.join(str(error).split())}"
        ) from error
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
