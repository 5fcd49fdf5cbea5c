"""A cache of transformed weights, such as Winograd's: computed once until a weight changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from torch import Tensor
from torch.nn import Buffer, Parameter


class _Own(threading.local):
    transforms: dict[Hashable, tuple[Parameter | Buffer, int, Tensor]] | None = None
    """(weight, version, transform) by the weight's id and the transform's name; None: caching is off"""


_own = _Own()


def start_transform_cache() -> None:
    """Enable this thread's cache, also for its backward passes, and empty it.

    Call it after weights change without a version bump: in memory that processes share, or through `data`.
    """
    _own.transforms = {}


def cached_transform(weight: Tensor, how: Hashable, transform: Callable[[], Tensor]) -> Tensor:
    """Return `transform()` of a weight, or the cached result; `how` names the transform."""
    transforms = _own.transforms
    # Tensors other than parameters and buffers are new in each call; inference tensors have no version.
    if transforms is None or not isinstance(weight, Parameter | Buffer) or weight.is_inference():
        return transform()
    key, version = (id(weight), how), weight._version
    if key not in transforms or transforms[key][1] != version:
        transforms[key] = weight, version, transform()
    return transforms[key][2]
