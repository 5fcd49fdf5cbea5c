"""Registers each fused rule as a custom operator of PyTorch, made of the rule's record and the kernel's.

The `rules.py` of a backend ("native" on CPUs, "triton" on GPUs) has two functions that fill what is allocated
here, `forward` and `backward`. They take the kernel's record and, by name, what it reads and fills: inputs,
`reset`, outputs (`W_T` of `W`), and backward the gradients of these (`dq`, `dW_T`). An input that the rule
lacks is missing there; a gradient of y or of a last state that is zero is None. Triton's backward pass
computes the states from those before every `SPACING`-th step, C computes all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

from torch import Tensor

from .native import compiling
from .native import rules as native
from .native.operator import Operator, have_memory
from .precision import without_autocast
from .pytorch.stepwise import SPACING, wants_gradient
from .shapes import Shapes

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Kernel:
    """What the kernels of a family of rules take, and what they fill; inputs by their names in `Shapes`."""

    name: str
    per_step: tuple[str, ...]
    """inputs `[T, B, H, ...]`, which need not be contiguous but in the last dimension"""
    states_and_weights: tuple[str, ...]
    """states and slow weights"""
    states: tuple[str, ...]
    """those of which forward fills the values after the last step, `W_T` of `W`, `c_T` of `c0`"""
    backward_inputs: tuple[str, ...]
    """what backward reads: per-step inputs, then states and weights, each in their own order; then outputs
    (y, states after the last step, what is saved) in this order; `reset` and checkpoints besides"""
    gradients: tuple[str, ...]
    """the inputs whose gradients it fills"""
    y: str = "v"
    """the input whose shape y has; `T y0`: that of y0 for each step; `last u`: that of a step's last write"""
    saved: Mapping[str, str] = field(default_factory=dict)
    """what forward fills for backward, with its shape as for y; empty if the rule lacks that input"""
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    """what Triton's backward pass needs besides, and of which state: those before every `SPACING`-th step"""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """what the kernels take last"""
    derived_gradients: Callable[[Named, Named], Named] | None = None
    """returns those that follow from what backward read and filled"""

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """The outputs whose gradients backward takes."""
        return ("y", *(f"{state.removesuffix('0')}_T" for state in self.states))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return (*self.ends, *self.saved)


class RuleOperator:
    """One rule as a differentiable operator, called as `operator(*inputs, reset, backend)`.

    Returns y and the states after the last step: the fast weights, the last y where the rule has y0, others.
    """

    def __init__(self, name: str, shapes: Shapes, kernel: Kernel) -> None:
        self._kernel, self._name = kernel, name
        _OPERATORS[name] = self
        self._inputs = shapes.names
        self._dimensions = dimensions = dict(zip(shapes.names, shapes.dimensions, strict=True))
        present = [name for name in kernel.per_step if name in dimensions]
        self._rows = {name for name in present if len(dimensions[name]) > 3}
        """those with numbers in the last dimension"""
        self._single = set(present) - self._rows
        self._ends = len(kernel.ends)
        self._outputs = [*kernel.outputs, *kernel.checkpoints]
        needed = [name for name in kernel.backward_inputs if name in dimensions or name in kernel.outputs]
        self._saved = ["reset", *needed, *kernel.checkpoints]
        self._gradients = [name for name in kernel.gradients if name in dimensions]
        saved = {
            name: (*of.split()[:-1], *dimensions[of.split()[-1]])
            for name, of in kernel.saved.items()
            if of.split()[-1] in dimensions
        }
        self._sizes = _sources(dimensions | saved, self._saved)
        self._forward = Operator(
            f"{name}_forward",
            f"{' '.join(shapes.names)} | save:bool backend:str",
            len(self._outputs),
            self._allocate,
            self._fill,
            self._save,
            self._differentiate,
        )
        self._backward = Operator(
            f"{name}_backward",
            f"{' '.join(self._saved)} {' '.join(f'd{end}?' for end in kernel.ends)} | backend:str",
            len(self._gradients),
            self._allocate_gradients,
            self._fill_gradients,
        )

    def __reduce__(self) -> tuple[Callable[[str], RuleOperator], tuple[str]]:
        """Pickle and copy the name: PyTorch has one operator of it."""
        return _operator, (self._name,)

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        *inputs, reset, backend = arguments
        watched = compiling.is_watched() or wants_gradient(*inputs)
        if backend == "native" and not watched and have_memory(arguments[:-1]):
            # Even no room for what backward needs takes time to allocate, much of an actor's step.
            given = self._contiguous(self._inputs, arguments[:-1])
            found = self._results(given, reset)
            native.forward(self._kernel, given | dict(zip(self._kernel.ends, found, strict=True)))
        else:
            found = self._forward(*inputs, reset, wants_gradient(*inputs), backend)[: self._ends]
        return (*found[:2], found[0][-1], *found[2:]) if "y0" in self._inputs else tuple(found)

    def _results(self, named: Named, reset: Tensor) -> list[Tensor]:
        y = _new(self._kernel.y, named, reset)
        return [y, *(named[state].new_empty(named[state].shape) for state in self._kernel.states)]

    def _allocate(self, *arguments: Any) -> tuple[Tensor, ...]:
        *inputs, save, backend = arguments
        named, reset = dict(zip(self._inputs, inputs, strict=True)), inputs[-1]
        new, spans = inputs[0].new_empty, -(-len(reset) // SPACING)
        saved = [
            _new(of, named, reset) if save and of.split()[-1] in named else new(0)
            for of in self._kernel.saved.values()
        ]
        checkpoints = [
            new((spans, *named[state].shape) if save and backend == "triton" else 0)
            for state in self._kernel.checkpoints.values()
        ]
        return *self._results(named, reset), *saved, *checkpoints

    def _fill(self, outputs: Sequence[Tensor], *arguments: Any) -> None:
        *inputs, _, backend = arguments
        given = self._contiguous(self._inputs, inputs)
        _module(backend).forward(self._kernel, given | dict(zip(self._outputs, outputs, strict=True)))

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        *tensors, _, ctx.backend = inputs
        named = dict(zip(self._inputs, tensors, strict=True))
        named |= zip(self._outputs, output, strict=True)
        ctx.save_for_backward(*(named[name] for name in self._saved))

    @without_autocast
    def _differentiate(self, ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return *self.gradients(ctx.backend, ctx.saved_tensors, gradients[: self._ends]), None, None, None

    def gradients(
        self, backend: str, saved: Sequence[Tensor], ends: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return those of inputs but `reset`, from what is saved and those of y and the last states."""
        found = self._backward(*saved, *ends, backend)
        named: dict[str, Tensor] = dict(zip(self._gradients, found, strict=True))
        if self._kernel.derived_gradients:
            named |= self._kernel.derived_gradients(dict(zip(self._saved, saved, strict=True)), named)
        return [named.get(name) for name in self._inputs[:-1]]

    def _allocate_gradients(self, *arguments: Any) -> tuple[Tensor, ...]:
        sizes = {letter: arguments[i].shape[at] for letter, (i, at) in self._sizes.items()}
        new = arguments[self._saved.index(self._kernel.states[0])].new_empty
        return tuple(new([sizes[each] for each in self._dimensions[name]]) for name in self._gradients)

    def _fill_gradients(self, gradients: Sequence[Tensor], *arguments: Any) -> None:
        *tensors, backend = arguments
        given = self._contiguous([*self._saved, *(f"d{end}" for end in self._kernel.ends)], tensors)
        filled = {f"d{name}": x for name, x in zip(self._gradients, gradients, strict=True)}
        _module(backend).backward(self._kernel, given | filled)

    def _contiguous(self, names: Sequence[str], tensors: Sequence[Any]) -> dict[str, Any]:
        """Return tensors by name: per-step inputs contiguous in the last dimension, others in all of them.

        Slices of one projection already are so in the last dimension, and are not copied.
        """
        found = {}
        for name, x in zip(names, tensors, strict=True):
            readable = x is None or name in self._single or (name in self._rows and _has_dense_rows(x))
            found[name] = x if readable else x.contiguous()
        return found


_OPERATORS: dict[str, RuleOperator] = {}


def _operator(name: str) -> RuleOperator:
    from . import rules  # noqa: F401  # which makes them

    return _OPERATORS[name]


def _module(backend: str) -> ModuleType:
    if backend == "triton":
        from .triton import rules as triton

        return triton
    return native


def _has_dense_rows(x: Tensor) -> bool:
    """Return whether the last dimension of `[T, B, H, size]` is contiguous, two of `[T, B, H, S, size]`."""
    return x.stride(-1) == 1 and (x.dim() < 5 or x.shape[-2] == 1 or x.stride(-2) == x.shape[-1])


def _new(of: str, named: Named, reset: Tensor) -> Tensor:
    """Allocate numbers in the shape of an input, for `T input` so many of each step, for `last input` without
    the dimension of writes."""
    if of.startswith("last "):
        x = named[of.removeprefix("last ")]
        return x.new_empty((*x.shape[:-2], x.shape[-1]))
    x = named[of.removeprefix("T ")]
    return x.new_empty(x.shape if of in named else (len(reset), *x.shape))


def _sources(dimensions: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return for each letter which of the tensors of these names has its size, and in which dimension."""
    found: dict[str, tuple[int, int]] = {}
    for i, name in enumerate(names):
        for at, letter in enumerate(dimensions.get(name, ())):
            found.setdefault(letter, (i, at))
    return found
