"""Decorators for what `torch.compile` shall call rather than trace.

Those of `torch.compiler` import torch._dynamo: a second and 140 MB in every process, most of which compile
nothing. So compiler.py, which has them, is imported by what is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """Like `torch.compiler.disable`: the graph ends before the call."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        if torch.compiler.is_compiling():
            from .compiler import call_outside

            return call_outside(function, *args, **kwargs)
        return function(*args, **kwargs)

    return wrapper


def constant(function: Callable[P, R]) -> Callable[P, R]:
    """Like `torch.compiler.assume_constant_result`: the graph has the result."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        if torch.compiler.is_compiling():
            from .compiler import call_once

            return call_once(function, *args, **kwargs)
        return function(*args, **kwargs)

    return wrapper
