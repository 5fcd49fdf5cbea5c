"""Comparing what a checkpoint describes with the tensors it has, before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules import module as hooks

Made = TypeVar("Made", bound=nn.Module)
Shapes = Mapping[str, tuple[int, ...]]


class WrongShapes(ValueError):
    """What is described has other tensors than those that are there."""


def check_shapes(build: Callable[[], Made], shapes: Shapes) -> Made:
    """Return the module that `build` makes, on torch's meta device, where tensors take no memory.

    Raises WrongShapes unless its tensors have these names and shapes, as soon as there are many more of them.
    Raises as well whatever `build` does.
    """
    with torch.device("meta"), _at_most(10 * len(shapes) + 100):
        made = build()
    described = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    for name in sorted({*shapes, *described}):
        if described.get(name) != shapes.get(name):
            there, wanted = (_spell(of.get(name)) for of in (shapes, described))
            raise WrongShapes(f"{name} has {there}, and in the agent that is described {wanted}")
    return made


@contextmanager
def _at_most(count: int) -> Iterator[None]:
    """Raise WrongShapes if more parameters, buffers and modules than `count` are made inside."""
    made = 0

    def one_more(*_: object) -> None:
        nonlocal made
        made += 1
        if made > count:
            raise WrongShapes("the agent that is described has many more tensors")

    with ExitStack() as stack:
        for of in ("module", "parameter", "buffer"):
            hook = getattr(hooks, f"register_module_{of}_registration_hook")(one_more)
            stack.callback(hook.remove)
        yield


def _spell(shape: tuple[int, ...] | None) -> str:
    return "no numbers" if shape is None else f"the shape {list(shape)}"
