"""What is imported by name: from the folder one stands in, only what the command line names.

A run from elsewhere may name code in its checkpoint, and bring that code along.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from ..errors import UsageError


def look_here_for(names: Iterable[str]) -> None:
    """Let the modules of "module:thing" be found in the folder one stands in, if one of them lies there.

    It is not searched without need: packages try to import others that are not installed, and would take
    whatever lies there under such a name.
    """
    if any(_lies_here(_module(name)) for name in names if ":" in name):
        sys.path.append(os.getcwd())


def check_env(env_id: str, trusted: str | None, checkpoint: Path) -> None:
    """Raise UsageError if making the environment that a checkpoint names needs a word of consent.

    A package that is installed needs none. A module in the folder one stands in does, and so does a part of
    a package: importing `package.__main__` runs a program.
    """
    if env_id != trusted and _asks(env_id):
        raise UsageError(
            f"{checkpoint} has an environment that would be imported, {env_id}, and importing runs code; "
            f"if you trust it, give --trust-env {shlex.quote(env_id)}"
        )


def consent(core: str, env_id: str | None) -> list[str]:
    """The options with which `eval` takes core and environment of a run that the user has trained."""
    words = ["--trust-core", core] if ":" in core else []
    return [*words, "--trust-env", env_id] if env_id and _asks(env_id) else words


def _asks(env_id: str) -> bool:
    """Whether an environment needs a word of consent."""
    module = _module(env_id)
    return bool(module) and ("." in module or _lies_here(module))


def _module(name: str) -> str:
    """Of "module:thing"; empty for a name without a module."""
    return name.rpartition(":")[0]


def _lies_here(module: str) -> bool:
    """Whether importing it would take it from the folder one stands in; nothing is imported to tell."""
    top = module.partition(".")[0]
    try:
        spec = find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])
    except (ImportError, ValueError):  # no name of a module, or one that cannot tell where it is from
        return True
    if spec is None:
        return False
    places = spec.submodule_search_locations or ([spec.origin or ""] if spec.has_location else [])
    return any(Path(place).parent.resolve() == Path.cwd() for place in places)
