"""Find environments by name: an id, or `module:name` for a class or function that makes and wraps one."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from .rescue import describe


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
        prefix = f"{module}:" if module else ""
        names = [
            *(_near_callables(module, bare_id) if module else ()),
            *difflib.get_close_matches(bare_id, _third_party_ids(), n=3),
        ]
        near = [prefix + name for name in names]
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "name the module that registers it as well, as in popgym:popgym-RepeatPreviousEasy-v0"
        )
        raise ValueError(f"unknown environment {env_id!r}: {hint}") from unknown
    if str(spec.entry_point).startswith("ale_py"):
        raise ValueError(f"{env_id} is an Atari game: give it as the game, so that a protocol applies")
    return spec


def _register(module: str, bare_id: str, env_id: str) -> None:
    """Import `module`. Should that not register the environment, run what its package declares for it."""
    try:
        importlib.import_module(module)
        package = module.partition(".")[0]
        if bare_id in gymnasium.registry:
            return
        for declared in importlib.metadata.entry_points(group="gymnasium.envs"):
            if declared.module.partition(".")[0] == package and callable(register := declared.load()):
                register()
    except ImportError as missing:
        raise ValueError(
            f"cannot import {module!r} for {env_id}: {missing}; install the package that registers it, or "
            "work in the folder that holds it"
        ) from missing
    except (Exception, SystemExit) as problem:  # whatever the code of others raises
        raise ValueError(f"importing {module!r} for {env_id} failed: {describe(problem)}") from problem


def _third_party_ids() -> list[str]:
    return [spec.id for spec in gymnasium.registry.values() if not str(spec.entry_point).startswith("ale_py")]


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


def _near_callables(module: str, name: str) -> list[str]:
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
