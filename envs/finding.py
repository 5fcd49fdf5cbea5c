"""Resolve an environment id, or `module:name` of a class or factory that makes one."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from .rescue import DoesNotStart, describe, own_trace


def find_spec(env_id: str) -> EnvSpec:
    """Return a copy of the specification registered as `env_id`. "module:Id-v0" imports the module first;
    "module:name" is a class or function of it that makes an environment, where no such id is registered.

    Raises ValueError, with near names.
    """
    module, _, bare_id = env_id.rpartition(":")
    if module:
        _register(module, bare_id, env_id)
        if bare_id not in gymnasium.registry and (own := _callable_spec(module, bare_id)):
            return own
    try:
        spec = copy.deepcopy(gymnasium.spec(bare_id))
    except gymnasium.error.Error as unknown:
        raise ValueError(f"unknown environment {env_id!r}: {_remedy(module, bare_id)}") from unknown
    if str(spec.entry_point).startswith("ale_py"):
        raise ValueError(f"{env_id} is an Atari game: give it as the game, so that a protocol applies")
    return spec


def _remedy(module: str, bare_id: str) -> str:
    """Say what could have been meant by an id that is not registered, nor in its module."""
    prefix = f"{module}:" if module else ""
    own = _own_callables(module) if module else []
    if module and _hidden_file(module):
        return f"{_whereabouts(module)} has {_some(own)}"
    if not module and (here := _file_here(bare_id)):
        return f"did you mean {here}?"
    specs = gymnasium.registry.values()
    others = [spec.id for spec in specs if not str(spec.entry_point).startswith("ale_py")]
    if near := [each for names in (own, others) for each in difflib.get_close_matches(bare_id, names)]:
        return f"did you mean {' or '.join(prefix + name for name in near)}?"
    if not module:
        return "name the module that registers it as well, as in popgym:popgym-RepeatPreviousEasy-v0"
    if hasattr(sys.modules[module], bare_id):
        return f"that is no class or function of {module}, which has {_some(own)}"
    return f"{_whereabouts(module)} has {_some(own)}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{', '.join(names[:8])}{more}" if names else "nothing that makes one"


def _file_here(name: str) -> str | None:
    """Return what `my_envs.Box` or `my_envs` could mean where this folder has my_envs.py."""
    module, _, thing = name.partition(".")
    return f"{module}:{thing or 'NAME'}" if module.isidentifier() and Path(f"{module}.py").is_file() else None


def _hidden_file(module: str) -> str | None:
    """Return the name of a file here that an imported module of the same name hides, as Python's `test`."""
    origin = getattr(sys.modules[module], "__file__", None)
    here = Path(os.getcwd(), *module.split(".")).with_suffix(".py")
    return here.name if here.is_file() and not (origin and here.samefile(origin)) else None


def _whereabouts(module: str) -> str:
    """Name an imported module with its file, and a file here that it hides."""
    origin, hidden = getattr(sys.modules[module], "__file__", None), _hidden_file(module)
    hides = f" (it hides {hidden} of this folder: rename that)" if hidden else ""
    return f"module {module!r}{f' of {origin}' if origin else ''}{hides}"


def _register(module: str, bare_id: str, env_id: str) -> None:
    """Import `module`. Should that not register the environment, run what its package declares for it."""
    if "/" in module or (module.endswith(".py") and Path(module).is_file()):
        name = f"{Path(module).name.removesuffix('.py')}:{bare_id}"
        raise ValueError(f"{env_id!r} names a file: work in its folder, and say {name}")
    try:
        importlib.import_module(module)
        package = module.partition(".")[0]
        if bare_id in gymnasium.registry:
            return
        for declared in importlib.metadata.entry_points(group="gymnasium.envs"):
            if declared.module.partition(".")[0] == package and callable(register := declared.load()):
                register()
    except ImportError as missing:
        lacking = missing.name or ""
        if isinstance(missing, ModuleNotFoundError) and not f"{module}.".startswith(f"{lacking}."):
            raise ValueError(
                f"importing {module!r} for {env_id} failed: {missing}; install what it imports, "
                f"{lacking.partition('.')[0]}"
            ) from missing
        near = difflib.get_close_matches(module, [file.stem for file in Path().glob("*.py")], n=1)
        remedy = f"did you mean {near[0]}:{bare_id}?" if near else (
            "install the package that registers it, or work in the folder that holds it, or name that in "
            "PYTHONPATH"
        )  # fmt: skip
        raise ValueError(f"cannot import {module!r} for {env_id}: {missing}; {remedy}") from missing
    except (Exception, SystemExit) as problem:  # whatever the code of others raises
        message = f"importing {module!r} for {env_id} failed: {describe(problem)}"
        raise DoesNotStart(message, own_trace(problem)) from problem


def _callable_spec(module: str, name: str) -> EnvSpec | None:
    """Return the specification of the environments that `name` of an imported module makes; None if it is
    nothing to call. What takes `num_envs` makes a vector environment.
    """
    make = getattr(sys.modules[module], name, None) if name.isidentifier() else None
    if not callable(make):
        return None
    many = "num_envs" in _parameters(make)
    point = "vector_entry_point" if many else "entry_point"
    return EnvSpec(f"{module}:{name}", **{point: make})


def _own_callables(module: str) -> list[str]:
    """List the public classes and functions that an imported module defines."""
    return [
        name
        for name, value in vars(sys.modules[module]).items()
        if callable(value) and getattr(value, "__module__", None) == module and not name.startswith("_")
    ]


def constructor(spec: EnvSpec) -> Callable[..., Any]:
    """Return what makes an environment of a specification, or a vector of them if nothing else does."""
    entry = spec.entry_point or spec.vector_entry_point
    assert entry is not None
    return entry if callable(entry) else load_env_creator(entry)


def required_options(spec: EnvSpec) -> list[str]:
    """List the options that an environment cannot be made without and its specification does not set."""
    given = {"num_envs", *spec.kwargs}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = _parameters(constructor(spec)).items()
    return [name for name, p in parameters if p.default is p.empty and p.kind in named and name not in given]


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except ValueError:  # some of C have none
        return {}
