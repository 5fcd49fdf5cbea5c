"""Registers each fused rule as a custom operator of PyTorch, made of the rule's record and the kernel's.

The `rules.py` of a backend ("native" on CPUs, "triton" on GPUs) has two functions that fill what is allocated
here, `forward` and `backward`. An input that the rule lacks is None for them, and so is a gradient of y or of
a last state (`ends`) that is zero. `checkpoints` are the states before every `SPACING`-th step, from which
Triton's backward pass computes the others; C computes all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .native import compiling
from .native import rules as native
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
    """those of which forward fills the values after the last step, `W_T` of `W`"""
    backward_inputs: tuple[str, ...]
    """what backward reads: per-step inputs, then states and weights, each in their own order; then outputs
    (y, states after the last step, what is saved) in this order; `reset` and checkpoints besides"""
    gradients: tuple[str, ...]
    """the inputs whose gradients it fills"""
    y: str = "v"
    """the input whose shape y has; `T y0`: that of y0 for each step"""
    saved: Mapping[str, str] = field(default_factory=dict)
    """what forward fills for backward, with its shape as for y; empty if the rule lacks that input"""
    checkpoints: tuple[str, ...] = ()
    """the states of which Triton's backward pass needs those before every `SPACING`-th step"""
    option: int | None = None
    """a number that the kernels take last"""
    derived_gradients: Callable[[Named, Named], Named] | None = None
    """returns those that follow from what backward read and filled"""


class RuleOperator:
    """One rule as a differentiable operator, called as `operator(*inputs, reset, backend)`.

    Returns y and the states after the last step: the fast weights, the last y where the rule has y0, others.
    """

    def __init__(
        self,
        name: str,
        shapes: Shapes,
        kernel: Kernel,
    ) -> None:
        self._kernel, self._name = kernel, name
        self._option = () if kernel.option is None else (kernel.option,)
        _OPERATORS[name] = self
        *self._inputs, _ = shapes.names
        dimensions = dict(zip(shapes.names, shapes.dimensions, strict=True))
        self._rows = {name for name in kernel.per_step if len(dimensions.get(name, ())) > 3}
        """those with numbers in the last dimension"""
        self._final_states = [f"{state}_T" for state in kernel.states]
        self._outputs = ["y", *self._final_states, *kernel.saved]
        self._checkpoints = [f"checkpoints of {state}" for state in kernel.checkpoints]
        self._needed_steps = [name for name in kernel.per_step if name in kernel.backward_inputs]
        self._needed_others = [name for name in kernel.backward_inputs if name in kernel.states_and_weights]
        self._needed_outputs = [name for name in kernel.backward_inputs if name in self._outputs]
        present = [name for name in self._needed_steps if name in dimensions]
        self._saved = [*present, *self._needed_others, "reset", *self._needed_outputs, *self._checkpoints]
        self._gradients = [name for name in kernel.gradients if name in dimensions]
        self._dimensions = dimensions
        saved = {
            name: (*of.split()[:-1], *dimensions[of.split()[-1]])
            for name, of in kernel.saved.items()
            if of.split()[-1] in dimensions
        }
        self._sizes = _sources(dimensions | saved, self._saved)
        self._register(name)

    def __reduce__(self) -> tuple[Callable[[str], RuleOperator], tuple[str]]:
        """Pickle and copy the name: PyTorch has one operator of it."""
        return _operator, (self._name,)

    def _register(self, name: str) -> None:
        ends = [f"d{each}" for each in ("y", *self._final_states)]
        outputs = len(self._outputs) + len(self._checkpoints)
        self._forward = _custom_op(
            f"{name}_forward",
            f"{_tensors([*self._inputs, 'reset'])}, bool save, str backend",
            outputs,
            self._compute,
            self._allocate,
        )
        self._backward = _custom_op(
            f"{name}_backward",
            f"{_tensors(self._saved)}, {', '.join(f'Tensor? {end}' for end in ends)}, str backend",
            len(self._gradients),
            self._compute_gradients,
            self._allocate_gradients,
        )
        self._ends = len(ends)
        self._forward.register_autograd(self.differentiate, setup_context=self._save)

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        *inputs, reset, backend = arguments
        if backend == "native" and not (compiling.is_watched() or wants_gradient(*inputs)):
            # An operator costs more than an actor's step.
            named = dict(zip(self._inputs, inputs, strict=True))
            found = self._results(named, reset)
            self._fill(backend, named, reset, [*found, *[None] * len(self._kernel.saved)], [])
        else:
            found = self._forward(*inputs, reset, wants_gradient(*inputs), backend)[: self._ends]
        return (*found[:2], found[0][-1], *found[2:]) if "y0" in self._inputs else tuple(found)

    def _results(self, named: Named, reset: Tensor) -> list[Tensor]:
        y = _new(self._kernel.y, named, reset)
        return [y, *(named[state].new_empty(named[state].shape) for state in self._kernel.states)]

    def _compute(self, *arguments: Any) -> tuple[Tensor, ...]:
        *inputs, reset, _, backend = arguments
        outputs = self._allocate(*arguments)
        count = len(self._outputs)
        self._fill(
            backend, dict(zip(self._inputs, inputs, strict=True)), reset, outputs[:count], outputs[count:]
        )
        return outputs

    def _fill(
        self,
        backend: str,
        named: Named,
        reset: Tensor,
        outputs: Sequence[Tensor | None],
        checkpoints: Sequence[Tensor],
    ) -> None:
        per_step, others = self._make_contiguous(
            named, self._kernel.per_step, self._kernel.states_and_weights
        )
        W = others[self._kernel.states_and_weights.index(self._kernel.states[0])]
        _module(backend).forward(
            self._kernel.name, per_step, others, W, reset.contiguous(), outputs, checkpoints, self._option
        )

    def _allocate(self, *arguments: Any) -> tuple[Tensor, ...]:
        *inputs, reset, save, backend = arguments
        named = dict(zip(self._inputs, inputs, strict=True))
        new, steps = inputs[0].new_empty, -(-len(reset) // SPACING)
        saved = [
            _new(of, named, reset) if save and of.split()[-1] in named else new(0)
            for of in self._kernel.saved.values()
        ]
        checkpoints = [
            new((steps, *named[state].shape) if save and backend == "triton" else 0)
            for state in self._kernel.checkpoints
        ]
        return *self._results(named, reset), *saved, *checkpoints

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        *tensors, _, ctx.backend = inputs
        named = dict(zip([*self._inputs, "reset"], tensors, strict=True))
        named |= zip([*self._outputs, *self._checkpoints], output, strict=True)
        ctx.save_for_backward(*(named[name] for name in self._saved))

    @without_autocast
    def differentiate(self, ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs, None for the three others, as `autograd.Function.backward`."""
        found = self._backward(*ctx.saved_tensors, *gradients[: self._ends], ctx.backend)
        named: dict[str, Tensor] = dict(zip(self._gradients, found, strict=True))
        if self._kernel.derived_gradients:
            needed = dict(zip(self._saved, ctx.saved_tensors, strict=True))
            named |= self._kernel.derived_gradients(needed, named)
        return *(named.get(name) for name in self._inputs), None, None, None

    def _compute_gradients(self, *arguments: Any) -> tuple[Tensor, ...]:
        *tensors, backend = arguments
        grads = self._allocate_gradients(*arguments)
        kernel, needed = self._kernel, dict(zip(self._saved, tensors, strict=False))
        per_step, others = self._make_contiguous(needed, self._needed_steps, self._needed_others)
        named = dict(zip(self._gradients, grads, strict=True))
        _module(backend).backward(
            kernel.name,
            per_step,
            others,
            [needed[name] for name in self._needed_outputs],
            others[self._needed_others.index(kernel.states[0])],
            needed["reset"].contiguous(),
            [needed[name] for name in self._checkpoints],
            [None if x is None else x.contiguous() for x in tensors[len(self._saved) :]],
            [named[name] if name in named else grads[0].new_empty(0) for name in kernel.gradients],
            self._option,
        )
        return grads

    def _allocate_gradients(self, *arguments: Any) -> tuple[Tensor, ...]:
        sizes = {letter: arguments[i].shape[at] for letter, (i, at) in self._sizes.items()}
        new = arguments[self._saved.index(self._kernel.states[0])].new_empty
        return tuple(new([sizes[each] for each in self._dimensions[name]]) for name in self._gradients)

    def _make_contiguous(
        self, named: Named, per_step: Iterable[str], states_and_weights: Iterable[str]
    ) -> tuple[list[Tensor | None], list[Tensor]]:
        """Make the last dimension of what has numbers in it contiguous, and all of states and slow weights.

        Slices of one projection already are so in the last dimension, and are not copied.
        """
        steps = []
        for name in per_step:
            x = named.get(name)
            wanted = x is not None and name in self._rows and x.stride(-1) != 1
            steps.append(x.contiguous() if wanted and x is not None else x)
        return steps, [named[name].contiguous() for name in states_and_weights]


_OPERATORS: dict[str, RuleOperator] = {}


def _operator(name: str) -> RuleOperator:
    from . import rules  # noqa: F401  # which makes them

    return _OPERATORS[name]


def _module(backend: str) -> ModuleType:
    if backend == "triton":
        from .triton import rules as triton

        return triton
    return native


def _new(of: str, named: Named, reset: Tensor) -> Tensor:
    """Allocate numbers in the shape of an input, or for `T input` so many of each step."""
    x = named[of.removeprefix("T ")]
    return x.new_empty(x.shape if of in named else (len(reset), *x.shape))


def _tensors(names: Iterable[str]) -> str:
    return ", ".join(f"Tensor {name.replace(' ', '_')}" for name in names)


def _custom_op(
    name: str, arguments: str, outputs: int, function: Callable[..., Any], fake: Callable[..., Any]
) -> Any:
    results = ", ".join(["Tensor"] * outputs)
    schema = f"({arguments}) -> ({results})"
    op = torch.library.custom_op(f"deltabeast::{name}", function, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


def _sources(dimensions: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return for each letter which of the tensors of these names has its size, and in which dimension."""
    found: dict[str, tuple[int, int]] = {}
    for i, name in enumerate(names):
        for at, letter in enumerate(dimensions.get(name, ())):
            found.setdefault(letter, (i, at))
    return found
