"""Kernels in C and Triton as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .native import compiling
from .once import differentiable_once
from .pytorch.stepwise import wants_gradient

Save = Callable[[Any, tuple[Any, ...], Any], None]
Differentiate = Callable[..., tuple[Tensor | None, ...]]


class Operator:
    """A kernel, with its gradient if it has one.

    Runs directly, or as an `autograd.Function` if gradients are needed; as a custom operator of PyTorch,
    which takes longer to call, only where a compiler or dispatch mode must see it.

    Args:
        name: In the namespace `deltabeast`.
        inputs: Names of its tensors and, after a bar, of its scalars: `x y? | n dtype:ScalarType`. `y` may be
            None; scalars are integers unless their type is given.
        results: Number of outputs; a single one is returned without a tuple.
        allocate: Returns uninitialised outputs, given all inputs.
        fill: Computes the outputs in place, given them and all inputs.
        save: Saves tensors for `differentiate`, as `setup_context` of `torch.library.register_autograd`.
        differentiate: Returns the gradients of all inputs, as `backward` of `register_autograd`.
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
        def run(*inputs: Any) -> Any:
            outputs = allocate(*inputs)
            fill(outputs, *inputs)
            return outputs

        self.run = run
        self.custom = torch.library.custom_op(
            f"deltabeast::{name}", run, mutates_args=(), schema=_schema(inputs, results)
        )
        self.custom.register_fake(allocate)
        self._function: type[torch.autograd.Function] | None = None
        if save and differentiate:
            torch.library.register_autograd(self.custom, differentiate, setup_context=save)
            self._function = _function(run, save, differentiate)

    def __call__(self, *inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if compiling.is_watched() or not have_memory(tensors):
            return self.custom(*inputs)
        if self._function and wants_gradient(*tensors):
            return self._function.apply(*inputs)
        return self.run(*inputs)


def have_memory(tensors: Iterable[Tensor]) -> bool:
    """Return whether tensors have memory for C to read; subclasses, such as fake tensors, may have none."""
    return all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)


def _schema(inputs: str, results: int) -> str:
    tensors, _, numbers = inputs.partition("|")
    arguments = [f"Tensor{'?' * x.endswith('?')} {x.rstrip('?')}" for x in tensors.split()]
    for number in numbers.split():
        name, _, kind = number.partition(":")
        arguments.append(f"{kind or 'int'} {name}")
    return f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * results)})"


def _function(run: Callable[..., Any], save: Save, backward: Differentiate) -> type[torch.autograd.Function]:
    def forward(ctx: Any, *inputs: Any) -> Any:
        # Not by `setup_context`, which takes as long as a custom operator.
        output = run(*inputs)
        save(ctx, inputs, output)
        return output

    # A second derivative would be silently wrong: kernels record no graph.
    methods = {"forward": staticmethod(forward), "backward": staticmethod(differentiable_once(backward))}
    return type("Operator", (torch.autograd.Function,), methods)
