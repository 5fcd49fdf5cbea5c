"""An agent's tensor shapes before it is built: on torch's meta device tensors take no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

Made = TypeVar("Made", bound=nn.Module)
Shapes = Mapping[str, tuple[int, ...]]

MAX_SIZE = 5_000
"""Largest number of modules and tensors of an agent; one of four layers has some 150."""


class WrongShapes(ValueError):
    """The tensors of a module differ in name, shape or number from those expected."""


def build_on_meta(build: Callable[[], Made], limit: int = MAX_SIZE) -> Made:
    """Call `build` under torch's meta device: return its module with tensors that have shapes but no storage.

    Raises WrongShapes once it has more than `limit` modules and tensors, and whatever `build` raises.
    """
    with torch.device("meta"), _at_most(limit):
        return build()


def count_numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def check_shapes(build: Callable[[], Made], shapes: Shapes) -> Made:
    """Build a module on the meta device and compare its `state_dict` with `shapes`; return the module.

    Raises WrongShapes unless names and shapes are the same, early if there are far more, and whatever `build`
    raises.
    """
    module = build_on_meta(build, 10 * len(shapes) + 100)
    described = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name in sorted({*shapes, *described}):
        if described.get(name) != shapes.get(name):
            there, expected = (_spell(of.get(name)) for of in (shapes, described))
            raise WrongShapes(f"{name}: expected {expected} from agent.json, found {there}")
    return module


@contextmanager
def _at_most(count: int) -> Iterator[None]:
    """Raise WrongShapes once more than `count` parameters, buffers and modules are registered inside."""
    total = 0

    def one_more(*_: object) -> None:
        nonlocal total
        total += 1
        if total > count:
            raise WrongShapes(f"it has more than {count:,} modules and tensors")

    with ExitStack() as stack:
        for of in ("module", "parameter", "buffer"):
            hook = getattr(hooks, f"register_module_{of}_registration_hook")(one_more)
            stack.callback(hook.remove)
        yield


def _spell(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else f"shape {list(shape)}"
