"""Registers each fused rule as a custom operator of PyTorch, made from its shapes and its kernel's signature.

The `rules.py` of a backend ("native" on CPUs, "triton" on GPUs) has two functions, `forward` and `backward`,
which fill tensors that are allocated here. They take the signature and, by name, all tensors that the kernel
reads and fills: inputs, `reset`, outputs (`W_T` is W after step T), and in backward their gradients (`dq`,
`dW_T`). An input that the rule lacks is missing there; a gradient of y or of a last state that is zero is
None. Backward recomputes the states: Triton from those before every `SPACING`-th step, C from the first.
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
from .operator import Operator, have_memory
from .precision import without_autocast
from .pytorch.stepwise import SPACING, wants_gradient
from .shapes import Shapes

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class KernelSignature:
    """The arguments of a family of kernels, forward and backward; inputs by their names in `Shapes`."""

    name: str
    per_step: tuple[str, ...]
    """inputs `[T, B, H, ...]`; only the last dimension need be contiguous"""
    states_and_weights: tuple[str, ...]
    """contiguous inputs without a time dimension: initial states `[B, H, ...]` and slow weights"""
    states: tuple[str, ...]
    """the states among them, whose values after the last step forward fills: `W_T` for `W`, `c_T` for `c0`"""
    backward_inputs: tuple[str, ...]
    """what backward reads: per-step inputs, states and weights, then outputs (y, states after the last step,
    saved tensors), each in the order of forward; also `reset` and, in Triton, the checkpoints"""
    gradients: tuple[str, ...]
    """the inputs whose gradients backward fills"""
    y: str = "v"
    """shape of y. `v`: that of the input v. `T y0`: `[T, *y0.shape]`. `last u`: that of u `[T, B, H, S, V]`
    without S, the writes of a step"""
    saved: Mapping[str, str] = field(default_factory=dict)
    """tensors that forward saves for backward, by name, with their shapes written as that of y; empty if the
    rule lacks the input that gives the shape"""
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    """by name, the state of which Triton saves the value before every `SPACING`-th step, for its backward:
    `[ceil(T / SPACING), *state.shape]`"""
    scalars: Mapping[str, int] = field(default_factory=dict)
    """integers that are passed last"""
    derived_gradients: Callable[[Named, Named], Named] | None = None
    """returns gradients computed in PyTorch from the kernel's own: takes what backward read and filled"""

    def num_writes(self, tensors: Mapping[str, Any]) -> int:
        """Return the number of writes per step: S of inputs `[T, B, H, S, ...]`, else one."""
        inputs = (tensors.get(name) for name in self.per_step)
        return next((x.shape[3] for x in inputs if x is not None and x.dim() == 5), 1)

    @cached_property
    def differentiable_outputs(self) -> tuple[str, ...]:
        """The outputs whose gradients backward takes: y and the states after the last step."""
        return ("y", *(f"{state.removesuffix('0')}_T" for state in self.states))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """What forward fills in both backends."""
        return (*self.differentiable_outputs, *self.saved)


class RuleOperator:
    """One rule as a differentiable operator, called as `operator(*inputs, reset, backend)`.

    Returns y and the states after the last step: fast weights, the last y if the rule has y0, others.
    """

    def __init__(self, name: str, shapes: Shapes, kernel: KernelSignature) -> None:
        self._kernel, self._name = kernel, name
        _OPERATORS[name] = self
        self._inputs = shapes.names
        self._dimensions = dimensions = dict(zip(shapes.names, shapes.dimensions, strict=True))
        present = [name for name in kernel.per_step if name in dimensions]
        self._rows = {name for name in present if len(dimensions[name]) > 3}
        """per-step inputs with a feature dimension; `_single` has those of one number a head"""
        self._single = set(present) - self._rows
        self._num_results = len(kernel.differentiable_outputs)
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
        output_gradients = " ".join(f"d{output}?" for output in kernel.differentiable_outputs)
        self._backward = Operator(
            f"{name}_backward",
            f"{' '.join(self._saved)} {output_gradients} | backend:str",
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
            # Without saved tensors: allocating even empty ones takes much of an actor's step.
            tensors = self._contiguous(self._inputs, arguments[:-1])
            outputs = self._results(tensors, reset)
            named = dict(zip(self._kernel.differentiable_outputs, outputs, strict=True))
            native.forward(self._kernel, tensors | named)
        else:
            outputs = self._forward(*inputs, reset, wants_gradient(*inputs), backend)[: self._num_results]
        return (*outputs[:2], outputs[0][-1], *outputs[2:]) if "y0" in self._inputs else tuple(outputs)

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
        tensors = self._contiguous(self._inputs, inputs)
        _module(backend).forward(self._kernel, tensors | dict(zip(self._outputs, outputs, strict=True)))

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        *tensors, _, ctx.backend = inputs
        named = dict(zip(self._inputs, tensors, strict=True))
        named |= zip(self._outputs, output, strict=True)
        ctx.save_for_backward(*(named[name] for name in self._saved))

    @without_autocast
    def _differentiate(self, ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        output_gradients = gradients[: self._num_results]
        return *self.gradients(ctx.backend, ctx.saved_tensors, output_gradients), None, None, None

    def gradients(
        self, backend: str, saved: Sequence[Tensor], output_gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients of all inputs but `reset`.

        `saved`: `reset` and what `backward_inputs` names. `output_gradients`: those of y and the last states.
        """
        filled = self._backward(*saved, *output_gradients, backend)
        named: dict[str, Tensor] = dict(zip(self._gradients, filled, strict=True))
        if self._kernel.derived_gradients:
            named |= self._kernel.derived_gradients(dict(zip(self._saved, saved, strict=True)), named)
        return [named.get(name) for name in self._inputs[:-1]]

    def _allocate_gradients(self, *arguments: Any) -> tuple[Tensor, ...]:
        sizes = {letter: arguments[i].shape[at] for letter, (i, at) in self._sizes.items()}
        new = arguments[self._saved.index(self._kernel.states[0])].new_empty
        return tuple(new([sizes[each] for each in self._dimensions[name]]) for name in self._gradients)

    def _fill_gradients(self, gradients: Sequence[Tensor], *arguments: Any) -> None:
        *tensors, backend = arguments
        names = [*self._saved, *(f"d{name}" for name in self._kernel.differentiable_outputs)]
        filled = {f"d{name}": x for name, x in zip(self._gradients, gradients, strict=True)}
        _module(backend).backward(self._kernel, self._contiguous(names, tensors) | filled)

    def _contiguous(self, names: Sequence[str], tensors: Sequence[Any]) -> dict[str, Any]:
        """Return tensors by name: per-step inputs contiguous in the last dimension, others in all of them.

        Slices of one projection already are so in the last dimension, and are not copied.
        """
        named = {}
        for name, x in zip(names, tensors, strict=True):
            readable = x is None or name in self._single or (name in self._rows and _has_dense_rows(x))
            named[name] = x if readable else x.contiguous()
        return named


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
    """Allocate a tensor whose shape is written as that of `KernelSignature.y`."""
    if of.startswith("last "):
        x = named[of.removeprefix("last ")]
        return x.new_empty((*x.shape[:-2], x.shape[-1]))
    x = named[of.removeprefix("T ")]
    return x.new_empty(x.shape if of in named else (len(reset), *x.shape))


def _sources(dimensions: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return for each letter which of the tensors of these names has its size, and in which dimension."""
    sources: dict[str, tuple[int, int]] = {}
    for i, name in enumerate(names):
        for at, letter in enumerate(dimensions.get(name, ())):
            sources.setdefault(letter, (i, at))
    return sources
