"""The options of a core or a task: names, types, defaults of its constructor, and what its docstring says."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_FOR_MEMORY = "memory_options"

_TAKES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "none"}


@dataclass(frozen=True)
class Normalized:
    """Marks an option whose values can be written in several ways: `Annotated[str, Normalized(function)]`.

    The function returns the form that is stored, and raises ValueError for a bad value.
    """

    function: Callable[[Any], Any]


@dataclass(frozen=True)
class Option:
    """One option of a core."""

    name: str
    types: tuple[type, ...]
    """Types of its values; empty, as `choices` is, for an option that takes anything."""
    choices: tuple[object, ...]
    """Values that a `typing.Literal` lists."""
    default: object
    """The default value; `inspect.Parameter.empty` for none."""
    description: str
    """Its entry in the `Args:` section of a docstring, as one line; empty if there is none."""
    normalize: Callable[[Any], Any] | None = None
    """The function of the `Normalized` that its type is annotated with."""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def takes(self) -> str:
        """The values that the option takes, for messages: "a whole number or none"."""
        listed = [f"one of {', '.join(map(str, self.choices))}"] if self.choices else []
        return " or ".join([*listed, *(_TAKES[kind] for kind in self.types)]) or "anything"

    def check(self, value: object) -> object:
        """Return the value in its declared type, 1 as 1.0 or True if need be. Raises ValueError."""
        if not self.types and not self.choices:
            return value
        for choice in self.choices:
            if type(value) is type(choice) and value == choice:
                return value
        for kind in self.types:
            if _fits(kind, value):
                if value is None:
                    return None
                return self.normalize(kind(value)) if self.normalize else kind(value)
        raise ValueError(f"{self.name} is {value!r}; {_meant(str(value), self.choices)}it takes {self.takes}")

    def normal(self, value: object) -> object:
        """Like `check`, but a value that the option does not take is returned as it is, as somebody's own
        default may be."""
        try:
            return self.check(value)
        except ValueError:
            return value

    def read(self, given: object) -> object:
        """Like `check`, but a string is from the command line and is parsed as the declared type."""
        for value in _meanings(given) if isinstance(given, str) else ():
            try:
                return self.check(value)
            except ValueError:
                continue
        return self.check(given)


def options_of(factory: Callable[..., Any], skip: int = 1) -> dict[str, Option]:
    """Return the options of a core by name: its constructor's, and its memory's if that gets the rest.

    The constructor's first `skip` parameters are not options, nor are names that begin with an underscore.

    A core that names a `memory` and takes `**memory_options` passes them to that memory's constructor, after
    hidden_size and num_heads; a memory that ends in `**` passes the rest to its base.
    """
    options = _options(factory, skip)
    memory = getattr(factory, "memory", None)
    if not inspect.isclass(memory) or _keywords(factory) != _FOR_MEMORY:
        return options
    return options | {name: each for name, each in memory_options_of(memory).items() if name not in options}


def memory_options_of(memory: type) -> dict[str, Option]:
    """Return the options of a memory by name, without hidden_size and num_heads."""
    options: dict[str, Option] = {}
    for base in inspect.getmro(memory):  # follow **kwargs up the MRO
        for name, each in _options(base, skip=2).items():
            if base is memory or not each.is_required:  # required base arguments are supplied by the subclass
                options.setdefault(name, each)
        if _keywords(base) is None:
            break
    return options


def validate_options(
    name: str,
    factory: Callable[..., Any],
    given: Mapping[str, Any],
    parse: bool = False,
    kind: str = "core",
    skip: int = 1,
) -> dict[str, Any]:
    """Check the options given for the core `name`; return them with the types that its constructor declares.

    parse: whether strings come from the command line, and are parsed as the declared type.
    kind: what the factory makes, for messages.
    skip: number of the constructor's first parameters that are not options.

    Raises:
        ValueError: in one line, for an unknown option, a value that it does not take, or a missing option.
    """
    takes_any = _keywords(factory) not in (None, _FOR_MEMORY)
    return check_options(f"{kind} {name!r}", options_of(factory, skip), given, parse, takes_any)


def check_options(
    whose: str,
    options: Mapping[str, Option],
    given: Mapping[str, Any],
    parse: bool = False,
    takes_any: bool = False,
) -> dict[str, Any]:
    """Like `validate_options`, of the options themselves.

    whose: what has them, for messages: "core 'rdn'".
    takes_any: whether others may be given, too, with any value.
    """
    values = {}
    for key, value in given.items():
        if key not in options and not takes_any:
            raise ValueError(_unknown(whose, key, list(options)))
        option = options.get(key) or Option(key, (), (), None, "")
        try:
            values[key] = (option.read if parse else option.check)(value)
        except ValueError as error:
            raise ValueError(f"{whose}: {error}") from None
    for option in options.values():
        if option.is_required and option.name not in given:
            raise ValueError(f"{whose} needs the option {option.name}; it takes {option.takes}")
    return values


def near_names(name: str, names: Iterable[str]) -> str:
    """Ask "did you mean ... or ...?" of the names that are spelled like `name`; empty if none is."""
    near = difflib.get_close_matches(name, list(names), n=3)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _unknown(whose: str, option: str, names: list[str]) -> str:
    if not names:
        return f"{whose} has no option {option!r}; it has none at all"
    return f"{whose} has no option {option!r}; {_meant(option, names)}it has {', '.join(names)}"


def _meant(given: str, choices: Iterable[object]) -> str:
    near = near_names(given, map(str, choices))
    return f"{near} " if near else ""


def _options(factory: Callable[..., Any], skip: int) -> dict[str, Option]:
    """Read the options from a signature, without its first `skip` parameters."""
    constructor = factory.__init__ if inspect.isclass(factory) else factory
    try:
        hints, annotations = get_type_hints(constructor), get_type_hints(constructor, include_extras=True)
    except Exception:  # a name in somebody's annotations that only a type checker knows
        hints, annotations = {}, {}
    descriptions = _descriptions(factory)
    options = {}
    for p in list(inspect.signature(factory).parameters.values())[skip:]:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and not p.name.startswith("_"):
            types, choices = _values(hints.get(p.name, str if isinstance(p.default, str) else None))
            extras = getattr(annotations.get(p.name), "__metadata__", ())
            normalize = next((each.function for each in extras if isinstance(each, Normalized)), None)
            description = descriptions.get(p.name, "")
            options[p.name] = Option(p.name, types, choices, p.default, description, normalize)
    return options


def _keywords(factory: Callable[..., Any]) -> str | None:
    """Return the name after `**` in a signature; None if there is none."""
    parameters = inspect.signature(factory).parameters.values()
    return next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)


def _values(annotation: Any) -> tuple[tuple[type, ...], tuple[object, ...]]:
    """Split an annotation into types and listed values; neither for one of any other kind."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    choices = [value for part in parts if get_origin(part) is Literal for value in get_args(part)]
    types = [part for part in parts if get_origin(part) is not Literal]
    return (tuple(types), tuple(choices)) if all(kind in _TAKES for kind in types) else ((), ())


def _fits(kind: type, value: object) -> bool:
    if kind is bool:
        return isinstance(value, int) and value in (0, 1)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _meanings(text: str) -> Iterator[object]:
    """Yield the values that a string from the command line may stand for, the string itself last."""
    for kind in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            if math.isfinite(kind(text)):  # JSON has neither nan nor inf
                yield kind(text)
    named = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        yield named[text.lower()]
    yield text


def _descriptions(factory: Callable[..., Any]) -> dict[str, str]:
    """Read the `Args:` of a function, or of a class and its bases: explanations by name, one line each."""
    classes = inspect.getmro(factory) if inspect.isclass(factory) else (factory,)
    lines: dict[str, str] = {}
    for owner in reversed(classes):
        section = re.search(r"^Args:\n((?:[ ].*\n|\n)+)", inspect.cleandoc(owner.__doc__ or "") + "\n", re.M)
        for entry in re.split(r"^ {4}(?! )", section[1], flags=re.M)[1:] if section else ():
            name, _, text = entry.partition(":")
            lines[name.partition(" ")[0]] = " ".join(text.split())
    return lines
