"""Keep autocast out: fast weights accumulate hundreds of small writes, which bfloat16 would lose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


def without_autocast(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to compute in its tensors' own dtype, even if the caller autocasts."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        first = next(tensors, None)  # a backward may be given nothing but None
        if first is None or not torch.is_autocast_enabled(device := first.device.type):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return wrapped
