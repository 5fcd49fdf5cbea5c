"""What kernels make of weights, made once for many calls while no weight changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.nn import Parameter

Made = tuple[Parameter, int, Tensor]
"""a weight, its version, and what was made of it"""


class _Own(threading.local):
    made: dict[Hashable, Made] | None = None


_own = _Own()


@contextmanager
def made_once() -> Iterator[None]:
    """Let this thread's calls inside, and those of a backward pass that it begins, share what they make.

    A weight that PyTorch changes inside is noticed; one that is changed behind its back (`data`, memory that
    processes share) is not.
    """
    outer = _own.made
    if outer is None:
        _own.made = {}
    try:
        yield
    finally:
        _own.made = outer


def made_of(weight: Tensor, how: Hashable, make: Callable[[], Tensor]) -> Tensor:
    """Return what `make` makes of a weight, `how` being its name: inside `made_once`, that of before."""
    made = _own.made
    # Others than parameters come anew with each call; those of inference mode have no version.
    if made is None or not isinstance(weight, Parameter) or weight.is_inference():
        return make()
    key, version = (id(weight), how), weight._version
    if key not in made or made[key][1] != version:
        made[key] = weight, version, make()
    return made[key][2]
