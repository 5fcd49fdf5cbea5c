"""Cores by name: the built-in ones, and any class the user points to."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .base import Core
from .options import near_names, options_of, validate_options

Factory = Callable[..., Core]
F = TypeVar("F", bound=Factory)

FEATURE_SIZE = 256
"""Number of features that the stem emits for a core without a `feature_size` of its own."""

_FACTORIES: dict[str, Factory] = {}


def register(name: str) -> Callable[[F], F]:
    """Decorator: make a `Core` subclass, or a function that returns a core, available under `name`.

    Its first argument is `input_size`; the others are the options of `make_core`.

    Raises:
        ValueError: if the name is taken.
    """

    def add(factory: F) -> F:
        if _FACTORIES.get(core_name(name), factory) is not factory:
            raise ValueError(f"core {name!r} is registered already; choose another name")
        _FACTORIES[core_name(name)] = factory
        return factory

    return add


def core_name(name: str) -> str:
    """Return a registered name with underscores for hyphens, which early versions had: `rdn-large`."""
    return name if ":" in name else name.replace("-", "_")


def core_names() -> tuple[str, ...]:
    """Return the registered names, sorted."""
    return tuple(sorted(_FACTORIES))


def core_feature_size(name: str) -> int:
    """Return how many features the stem emits for this core, the last reward not counted.

    256, or the core's class attribute `feature_size`.

    Raises:
        ValueError: for an unknown name.
    """
    return int(getattr(find_core(name), "feature_size", FEATURE_SIZE))


def make_core(name: str, input_size: int, /, **options: object) -> Core:
    """Build a core.

    Args:
        name: a registered name, or `package.module:Class` for a core from outside this project.
        input_size: width of the vectors the core reads.
        options: what this core's constructor takes, e.g. `hidden_size=256`.

    Raises:
        ValueError: for an unknown name, an option the core does not have, or a bad value.
    """
    factory = find_core(name)
    values = validate_options(name, factory, options)
    try:
        return factory(input_size, **values)
    except ValueError as error:
        raise ValueError(f"core {name!r}: {error}") from error
    except Exception as error:
        if ":" not in name:
            raise
        message = f"core {name!r} does not start: {type(error).__name__}: {error}"
        raise CoreDoesNotStart(message, error) from error


class CoreDoesNotStart(ValueError):
    """A core from outside this project raised when it was made; `trace` is its traceback."""

    def __init__(self, message: str, error: Exception) -> None:
        super().__init__(message)
        own = error.__traceback__.tb_next if error.__traceback__ else None
        self.trace = "".join(traceback.format_exception(type(error), error, own)).rstrip()


def read_core_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parse options from the command line: strings become the types that the core declares.

    Raises:
        ValueError: as `make_core`, before anything is built.
    """
    return validate_options(name, find_core(name), given, parse=True)


def non_default_options(core: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without those that have the core's default value, so that equal cores have equal ones.
    What a core does not have or take, as of another version, is left as it is.
    """
    try:
        declared = options_of(find_core(core))
    except ValueError:
        declared = {}
    others = {}
    for name, value in options.items():
        option = declared.get(name)
        value = option.normal(value) if option else value
        if option is None or not _equal(value, option.normal(option.default)):
            others[name] = value
    return others


def _equal(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def find_core(name: str) -> Factory:
    """Find the class or function registered under `name`, or the class at `package.module:Class`.

    Raises:
        ValueError: if there is none.
    """
    if ":" in name:
        return _load(name)
    spelled = core_name(name)
    if spelled not in _FACTORIES:
        module, _, attribute = name.rpartition(".")
        hint = f"did you mean {module}:{attribute}?" if module else near_names(spelled.lower(), _FACTORIES)
        hint = hint or f"say one of {', '.join(core_names())}"
        raise ValueError(f"unknown core {name!r}; {hint}")
    return _FACTORIES[spelled]


def _load(path: str) -> Factory:
    module_name, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"core {path!r} cannot be loaded: {error}; run from the folder that contains it (a script must "
            "be in it), or add the folder to PYTHONPATH, and give package.module:Class"
        ) from error
    # The name may come from a checkpoint: nothing but a core is ever called.
    if not (inspect.isclass(factory) and issubclass(factory, Core)):
        raise ValueError(
            f"core {path!r} is not a subclass of deltabeast.cores.Core; give package.module:Class"
        )
    return factory
