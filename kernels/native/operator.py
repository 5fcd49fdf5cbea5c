"""Functions in C as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..once import differentiable_once
from ..pytorch.stepwise import wants_gradient
from . import compiling

Save = Callable[[Any, tuple[Any, ...], Any], None]
Differentiate = Callable[..., tuple[Tensor | None, ...]]


class Operator:
    """A function in C, with its gradient if it has one.

    Called directly, or as an `autograd.Function` where gradients are wanted; as one of PyTorch's custom
    operators, which take longer to call, only where PyTorch has to see it.

    Args:
        name: In the namespace `deltabeast`.
        inputs: Names of its tensors and, behind a bar, of its numbers: `x y? | n dtype:ScalarType`. `y` may
            be None; numbers are integers if their type is not given.
        results: Their number; a single one is no tuple.
        allocate: Returns the results, whatever they hold, from all inputs.
        fill: Computes them, from the results and all inputs.
        save: Keeps what `differentiate` needs, as `setup_context` of `torch.library.register_autograd`.
        differentiate: Returns gradients of all inputs, as `backward` of the same.
    """

    def __init__(
        self,
        name: str,
        inputs: str,
        results: int,
        allocate: Callable[..., Any],
        fill: Callable[..., None],
        save: Save | None = None,
        differentiate: Differentiate | None = None,
    ) -> None:
        def in_c(*given: Any) -> Any:
            found = allocate(*given)
            fill(found, *given)
            return found

        self.in_c = in_c
        self.custom = torch.library.custom_op(
            f"deltabeast::{name}", in_c, mutates_args=(), schema=_schema(inputs, results)
        )
        self.custom.register_fake(allocate)
        self._function: type[torch.autograd.Function] | None = None
        if save and differentiate:
            torch.library.register_autograd(self.custom, differentiate, setup_context=save)
            self._function = _function(in_c, save, differentiate)

    def __call__(self, *inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if compiling.is_watched() or not have_memory(tensors):
            return self.custom(*inputs)
        if self._function and wants_gradient(*tensors):
            return self._function.apply(*inputs)
        return self.in_c(*inputs)


def have_memory(tensors: Iterable[Tensor]) -> bool:
    """Return whether tensors are PyTorch's own, for C to read: subclasses, as fakes are, may have none."""
    return all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)


def _schema(inputs: str, results: int) -> str:
    tensors, _, numbers = inputs.partition("|")
    arguments = [f"Tensor{'?' * x.endswith('?')} {x.rstrip('?')}" for x in tensors.split()]
    for number in numbers.split():
        name, _, kind = number.partition(":")
        arguments.append(f"{kind or 'int'} {name}")
    return f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * results)})"


def _function(in_c: Callable[..., Any], save: Save, backward: Differentiate) -> type[torch.autograd.Function]:
    def forward(ctx: Any, *inputs: Any) -> Any:
        # Not by `setup_context`, which takes as long as a custom operator.
        output = in_c(*inputs)
        save(ctx, inputs, output)
        return output

    # Twice would be wrong in silence: C leaves no graph behind.
    methods = {"forward": staticmethod(forward), "backward": staticmethod(differentiable_once(backward))}
    return type("Operator", (torch.autograd.Function,), methods)
