"""Digests of what functions and classes compute: of their sources, and of what those name in this project.

C is also compared with the eager code numerically, but numbers miss an edit to a term that happens to be
zero; a digest of the source does not. Comments, docstrings, blank lines and line endings do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

PROJECT = __name__.split(".")[0]
_READS_OPTIONS = f"{PROJECT}.cores.options"
"""not followed: what options decide is in the modules that are made of them"""
_MAKERS = {"collections", "dataclasses", "typing", "reprlib"}
_WRAPPERS = {"torch", "functools", "contextlib"}
_CONSTANTS = int, float, complex, str, bytes, bool, type(None), tuple, frozenset


def digests(*eager: Any) -> dict[str, str]:
    """Return 16 hex digits, by name, for each source that decides what functions and classes compute.

    Follows the functions, classes and constants of this project that a source names, and classes' bases, but
    not what it reaches through an object, such as a module's `forward`: pass that as well.
    Raises OSError if a source cannot be read.
    """
    sources: dict[str, str] = {}
    for each in eager:
        _visit(each, sources)
    return {
        name: hashlib.sha256(source.encode()).hexdigest()[:16] for name, source in sorted(sources.items())
    }


def find_edited(recorded: Mapping[str, str], *eager: Any) -> str | None:
    """Return why the C kernels no longer match these functions and classes (`f was edited`), or None.

    `recorded`: their digests when the kernels were last tested against them.
    """
    try:
        current = digests(*eager)
    except Exception:  # a lambda's source may be no statement, an object has none
        return f"{', '.join(map(name_of, eager))} has no source to compare"
    differing = [name for name, digest in current.items() if recorded.get(name) != digest]
    edited = next((name for name in differing if name in recorded), None)
    if edited:
        return f"{edited} was edited"
    return f"no verified C kernel for {differing[0]}" if differing else None


def name_of(thing: Any) -> str:
    """Return `module.name` of a function or class, without the project's name."""
    if isinstance(thing, functools.partial):
        return name_of(thing.func)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{getattr(thing, '__module__', '')}.{name}".removeprefix(f"{PROJECT}.")


def _visit(thing: Any, sources: dict[str, str], name: str = "") -> None:
    """Add to `sources` the source of a function, or of a class's methods, and of what they name."""
    if isinstance(thing, functools.partial):
        thing = thing.func
    name = name or name_of(thing)
    if name in sources:
        return
    sources[name] = ""
    if isinstance(thing, type):
        _visit_class(name, thing, sources)
        return
    for layer in _layers(thing):
        source = _source(id(layer.__code__), layer.__code__)
        named = [_follow(path, layer.__globals__, sources) for path in _names(source)]
        sources[name] += "\n".join([normalised(source), *filter(None, named), ""])


@functools.cache
def _source(identity: int, code: CodeType) -> str:
    """Return the source of a function; by identity, as equal codes may have other defaults and decorators."""
    return textwrap.dedent(inspect.getsource(code))


def _layers(function: FunctionType) -> Iterator[FunctionType]:
    """Yield a function and those that it wraps, except a library's wrappers."""
    layer: Any = function
    while layer is not None:
        if layer.__globals__.get("__name__", "").split(".")[0] not in _WRAPPERS:
            yield layer
        layer = getattr(layer, "__wrapped__", None)


def _visit_class(name: str, kind: type, sources: dict[str, str]) -> None:
    """Add a class's methods one by one, so that a replaced one is detected, its constants and its bases."""
    attributes = []
    for attribute, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and not _is_generated(attribute, function):
            _visit(function, sources, f"{name}.{attribute}")
        elif isinstance(value, _CONSTANTS) and not attribute.startswith("__"):
            sources[f"{name}.{attribute}"] = _shown(value)
        else:
            continue
        attributes.append(attribute)
    bases = [base for base in kind.__bases__ if _is_ours(base)]
    for base in bases:
        _visit(base, sources)
    sources[name] = "\n".join(
        [*map(name_of, bases), *sorted(attributes)]
    )  # so that a removed one counts, too


def _is_generated(attribute: str, function: FunctionType) -> bool:
    """Return whether a method was generated from the fields of a dataclass or named tuple."""
    function = inspect.unwrap(function)
    if function.__globals__.get("__name__", "").split(".")[0] in _MAKERS:
        return True
    return function.__code__.co_filename.startswith("<") and attribute.startswith("_")


def _follow(path: tuple[str, ...], scope: dict[str, Any], sources: dict[str, str]) -> str | None:
    """Add what a dotted name refers to if it is a function, class or constant of this project; return its
    name, else None."""
    if path[0] not in scope:
        return None
    thing = scope[path[0]]
    for part in path[1:]:
        if not (isinstance(thing, ModuleType) and _is_ours(thing)):
            break  # an attribute of an object
        thing = getattr(thing, part)
    if isinstance(thing, _CONSTANTS):
        name = f"{scope['__name__']}.{'.'.join(path)}".removeprefix(f"{PROJECT}.")
        sources[name] = _shown(thing)
        return name
    if not isinstance(thing, type | FunctionType | functools.partial):
        thing = getattr(thing, "reference", None)  # a rule of kernels/, whose forms are tested against it
    if isinstance(thing, type | FunctionType | functools.partial) and _is_ours(thing):
        _visit(thing, sources)
        return name_of(thing)
    return None


def _shown(constant: Any) -> str:
    return repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _is_ours(thing: Any) -> bool:
    thing = thing.func if isinstance(thing, functools.partial) else thing
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
    return name.split(".")[0] == PROJECT and name != _READS_OPTIONS


@functools.cache
def _names(source: str) -> list[tuple[str, ...]]:
    return list(_paths(ast.parse(source)))


def _paths(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names in a source, except in annotations: (a, b, c) for `a.b.c`."""
    if path := _dotted(tree):
        yield path
        return
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _paths(child)


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """Return the parts of a dotted name; nothing for another expression."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=value, attr=attribute) if path := _dotted(value):
            return (*path, attribute)
    return ()


@functools.cache  # parts, and runs of one process, have most of their sources in common
def normalised(source: str) -> str:
    """Return a source without comments, docstrings and blank lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            for each in body:
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    assert each.end_lineno is not None
                    lines[each.lineno - 1 : each.end_lineno] = [""] * (each.end_lineno - each.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
