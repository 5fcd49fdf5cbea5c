"""What `torch.compile` calls in place of what untraced.py decorates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call_outside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call it outside the graph."""
    return function(*args, **kwargs)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def call_once(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call it while the graph is made."""
    return function(*args, **kwargs)
