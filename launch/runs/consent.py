"""Consent to imports: a run from elsewhere may name code in its checkpoint, and bring that code along.

From the current folder, only modules that the command line names are imported.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .directory import option_words


def look_here_for(names: Iterable[str]) -> None:
    """Put the current folder on the import path if it holds the module of one of these "module:thing" names.

    It is not searched otherwise: packages try to import others that are not installed, and would take
    whatever lies there under such a name.
    """
    if any(_lies_here(name.rpartition(":")[0]) for name in names if ":" in name):
        sys.path.append(os.getcwd())


def check_env(env_id: str, options: Mapping[str, Any], trusted: str | None, checkpoint: Path) -> None:
    """Raise UsageError if making the environment that a checkpoint names needs a word of consent.

    What an installed package registers needs none. A module in the current folder does, and so does a part of
    a package, since importing `package.__main__` runs a program, and a function of any module, which would be
    called with the options. So does an option that could name something to import.
    """
    if env_id != trusted and (needs_consent("env", env_id) or may_name_code(options)):
        raise UsageError(
            f"{checkpoint} has an environment that would be imported, {env_id}, and importing runs code; "
            f"if you trust it, give {shlex.join(option_words('trust_env', env_id))}"
        )


def consent(core: str, env_id: str | None) -> list[str]:
    """Return the options that let `eval` import the core and the environment of a run."""
    words = option_words("trust_core", core) if needs_consent("core", core) else []
    return [*words, *option_words("trust_env", env_id)] if env_id and needs_consent("env", env_id) else words


def needs_consent(option: str, name: str) -> bool:
    """Return whether a "core", or an "env", that a file names may be imported only with a word of consent."""
    if option == "core":
        return ":" in name
    module, _, thing = name.rpartition(":")
    return bool(module) and (thing.isidentifier() or "." in module or _lies_here(module))


def may_name_code(options: Mapping[str, Any]) -> bool:
    """Return whether an option of an environment reads as `module:thing`, which some would import."""
    return any(isinstance(value, str) and ":" in value for value in options.values())


def _lies_here(module: str) -> bool:
    """Whether an import would take the module from the current folder; nothing is imported to find out."""
    top = module.partition(".")[0]
    try:
        spec = find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])
    except (ImportError, ValueError):  # not a module's name, or a module that does not say where it is from
        return True
    if spec is None:
        return False
    places = spec.submodule_search_locations or ([spec.origin or ""] if spec.has_location else [])
    return any(Path(place).parent.resolve() == Path.cwd() for place in places)
