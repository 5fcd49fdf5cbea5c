"""What a function or class computes, as a digest of its source and of what it names in this project.

A part of agents/cpu is compared with the plain code by numbers, and numbers do not show a term
that happens to be zero; a changed source does. Comments, docstrings, blank lines and line ends do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

PROJECT = __name__.split(".")[0]
_MAKERS = {"collections", "dataclasses", "typing", "reprlib"}
_WRAPPERS = {"torch", "functools", "contextlib"}
_CONSTANTS = int, float, complex, str, bytes, bool, type(None), tuple, frozenset


def digest(*plain: Any) -> str:
    """Return 16 hex digits that the sources of functions and classes decide, with all that they name.

    Followed are the functions, classes and constants of this project that a source names, and their bases;
    not what it reaches through an object, such as a module's `forward`: give that besides.
    Raises OSError where a source cannot be read.
    """
    found: dict[str, str] = {}
    for each in plain:
        _visit(each, found)
    text = "\n".join(f"{name}\n{source}" for name, source in sorted(found.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _visit(thing: Any, found: dict[str, str], name: str = "") -> None:
    """Add the source of a function, or of a class's methods, and of what they name, to what was found."""
    if isinstance(thing, functools.partial):
        raise TypeError(f"{thing} has no source of its own")
    name = name or f"{thing.__module__}.{thing.__qualname__}"
    if name in found:
        return
    if isinstance(thing, type):
        found[name] = ""
        _visit_class(name, thing, found)
        return
    found[name] = ""
    for layer in _layers(thing):
        source = textwrap.dedent(inspect.getsource(layer.__code__))
        found[name] += normalised(source) + "\n"
        for path in _paths(ast.parse(source)):
            _follow(path, layer.__globals__, found)


def _layers(function: FunctionType) -> Iterator[FunctionType]:
    """Yield a function and those that it wraps, but for what libraries wrap around it."""
    layer: Any = function
    while layer is not None:
        if layer.__globals__.get("__name__", "").split(".")[0] not in _WRAPPERS:
            yield layer
        layer = getattr(layer, "__wrapped__", None)


def _visit_class(name: str, kind: type, found: dict[str, str]) -> None:
    """Add methods one by one, so that one that somebody replaced is seen, the class's constants and bases."""
    for attribute, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and not _is_generated(attribute, function):
            _visit(function, found, f"{name}.{attribute}")
        elif isinstance(value, _CONSTANTS) and not attribute.startswith("__"):
            found[f"{name}.{attribute}"] = _shown(value)
    for base in filter(_is_ours, kind.__bases__):
        _visit(base, found)


def _is_generated(attribute: str, function: FunctionType) -> bool:
    """Return whether a method is one that dataclasses and named tuples make of their fields."""
    function = inspect.unwrap(function)
    if function.__globals__.get("__name__", "").split(".")[0] in _MAKERS:
        return True
    return function.__code__.co_filename.startswith("<") and attribute.startswith("_")


def _follow(path: tuple[str, ...], scope: dict[str, Any], found: dict[str, str]) -> None:
    """Add what a dotted name stands for, if it is a function, class or constant of this project."""
    if path[0] not in scope:
        return
    thing = scope[path[0]]
    for part in path[1:]:
        if not (isinstance(thing, ModuleType) and _is_ours(thing)):
            break  # an attribute of an object
        thing = getattr(thing, part)
    if isinstance(thing, _CONSTANTS):
        found[f"{scope['__name__']}.{'.'.join(path)}"] = _shown(thing)
    elif isinstance(thing, type | FunctionType | functools.partial) and _is_ours(thing):
        _visit(thing, found)
    elif isinstance(reference := getattr(thing, "reference", None), FunctionType) and _is_ours(reference):
        _visit(reference, found)  # a rule of kernels/, whose forms are tested against it


def _shown(constant: Any) -> str:
    return repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _is_ours(thing: Any) -> bool:
    thing = thing.func if isinstance(thing, functools.partial) else thing
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
    return name.split(".")[0] == PROJECT


def _paths(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names of a source but for its annotations: (a, b, c) for `a.b.c`."""
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


def normalised(source: str) -> str:
    """Drop from a source what does not count."""
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
