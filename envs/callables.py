"""`module:name` as an environment: a class, or a function that makes and wraps one."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from gymnasium.envs.registration import EnvSpec, load_env_creator


def callable_spec(module: str, name: str) -> EnvSpec | None:
    """Return the specification of the environments that `name` of an imported module makes; None if it is
    nothing to call. What takes `num_envs` makes a vector environment.
    """
    make = getattr(sys.modules[module], name, None) if name.isidentifier() else None
    if not callable(make):
        return None
    many = "num_envs" in _parameters(make)
    point = "vector_entry_point" if many else "entry_point"
    return EnvSpec(f"{module}:{name}", **{point: make})


def near_callables(module: str, name: str) -> list[str]:
    """List what a module has of its own that could be meant by `name`."""
    own = [each for each, value in vars(sys.modules[module]).items() if _is_own(value, module)]
    return difflib.get_close_matches(name, own, n=3)


def constructor(spec: EnvSpec) -> Callable[..., Any]:
    """Return what makes an environment of a specification, or a vector of them if nothing else does."""
    entry = spec.entry_point or spec.vector_entry_point
    assert entry is not None
    return entry if callable(entry) else load_env_creator(entry)


def _is_own(value: object, module: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module


def _parameters(make: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(make).parameters)
    except ValueError:  # some of C have none
        return set()
