"""What kernels make of weights, made once for many calls while no weight changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from torch import Tensor
from torch.nn import Parameter


class _Own(threading.local):
    transforms: dict[Hashable, tuple[Parameter, int, Tensor]] | None = None
    """weight, its version, and what was made of it; None where nothing is cached"""


_own = _Own()


def forget_transforms() -> None:
    """Begin to cache this thread's transforms, and those of its backward passes, anew.

    A weight that PyTorch changes is noticed. Call this after others changed one, in memory that processes
    share or through `data`.
    """
    _own.transforms = {}


def cached_transform(weight: Tensor, how: Hashable, transform: Callable[[], Tensor]) -> Tensor:
    """Return `transform()` of a weight, `how` being its name, or that of before."""
    transforms = _own.transforms
    # Others than parameters come anew with each call; those of inference mode have no version.
    if transforms is None or not isinstance(weight, Parameter) or weight.is_inference():
        return transform()
    key, version = (id(weight), how), weight._version
    if key not in transforms or transforms[key][1] != version:
        transforms[key] = weight, version, transform()
    return transforms[key][2]
