"""`Rule`: the shapes of a rule's inputs, its reference and its faster forms; calling it picks one."""

from __future__ import annotations

import functools
import json
import multiprocessing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .precision import without_autocast
from .shapes import Shapes
from .sources import find_edited, name_of
from .untraced import untraced

DIGESTS = Path(__file__).with_name("digests.json")
"""digests of the references that the other forms were last tested against; `make digests` renews them"""

FUSED = ("native", "triton")
BACKENDS = ("auto", "reference", "chunked", *FUSED)


class Fused(NamedTuple):
    """A fused form of a rule: one operator, differentiable, for a whole unroll."""

    operator: Callable[..., Any]
    """called as `operator(*inputs, reset, backend)`"""
    unsupported_reason: Callable[[tuple[Tensor, ...]], str | None]
    """returns why it cannot take these inputs, which have passed `Shapes.check`; None if it can"""


@dataclass(frozen=True, eq=False)
class Rule:
    """An update rule of fast weights, called as `rule(*inputs, reset, backend="auto")`.

    Only `shapes` and `reference` are needed: the reference then computes every unroll, on any device and with
    gradients. Every other form is an optional, faster one that equals it to rounding.
    """

    name: str
    shapes: Shapes
    """the inputs, without `reset`, which comes last"""
    reference: Callable[..., Any]
    """the definition, a plain loop over steps in any floating dtype: y `[T, B, ...]` and the next states"""
    chunked: Callable[..., Any] | None = None
    """PyTorch, a whole unroll with gradients"""
    step: Callable[..., Any] | None = None
    """PyTorch, for actors: one step without gradients"""
    native: Fused | None = None
    """C for CPUs"""
    triton: Fused | None = None
    """Triton for GPUs"""
    maps: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    """what callers apply to an input first, by its name (a softmax to keys); `random_inputs` does, too"""
    edited: str | None = field(init=False, default=None)
    """why the other forms no longer match `reference` (`f was edited`), or None; if set, `backend="auto"`
    always runs the reference"""

    def __post_init__(self) -> None:
        if name_of(self.reference) in _recorded():  # one of this project's rules
            edited = find_edited(_recorded(), self.reference)
            object.__setattr__(self, "edited", edited)
            if edited:
                _say_once(f"{edited}: rules that need it run their reference in PyTorch (see `make digests`)")

    @without_autocast
    def __call__(self, *inputs: Tensor, backend: str = "auto") -> Any:
        """Compute the rule: y `[T, B, ...]` and the states after the last step. Inputs in order, reset last.

        Raises:
            ValueError: for an unknown backend or one that cannot take the inputs, or inputs that disagree.
        """
        if backend not in BACKENDS:
            raise ValueError(f"{self.name}: unknown backend {backend!r}; choose from {', '.join(BACKENDS)}")
        self.shapes.check(self.name, inputs)
        if backend == "auto":
            fused = self.fused_for(inputs)
            if fused is None:
                return _loop(self.in_pytorch(len(inputs[0])), *inputs)
            backend = fused
        elif reason := self.unsupported_reason(backend, inputs):
            raise ValueError(f"{self.name}: {reason}")
        form = getattr(self, backend)
        return form.operator(*inputs, backend) if backend in FUSED else _loop(form, *inputs)

    def unsupported_reason(self, backend: str, inputs: tuple[Tensor, ...]) -> str | None:
        """Return why a backend other than `auto` cannot compute the rule for these inputs; None if it can."""
        form = getattr(self, backend)
        if form is None:
            return f"this rule has no {backend!r} backend; choose from {', '.join(self.backends)}"
        reason: str | None = form.unsupported_reason(inputs) if backend in FUSED else None
        return reason

    def fused_for(self, inputs: tuple[Tensor, ...]) -> str | None:
        """Return the fused backend that supports these inputs on their device, or None."""
        if self.edited:
            return None
        # Triton's interpreter computes on CPUs too, but is no backend to use there.
        backend = "triton" if inputs[0].is_cuda else "native"
        form: Fused | None = getattr(self, backend)
        return backend if form is not None and form.unsupported_reason(inputs) is None else None

    def in_pytorch(self, steps: int) -> Callable[..., Any]:
        """Return the fastest form in PyTorch for an unroll of this many steps."""
        if self.edited:
            return self.reference
        if steps == 1 and self.step is not None:
            return self.reference if torch.is_grad_enabled() else self.step
        return self.chunked or self.reference

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that this rule has, whatever the device."""
        return ("auto", *(name for name in BACKENDS[1:] if getattr(self, name) is not None))

    def backends_on(self, device: torch.device, head_size: int) -> tuple[str, ...]:
        """Return the backends that compute the rule on a device in float32, without `auto`."""
        sizes = dict.fromkeys(self.shapes.letters, head_size) | {"T": 1, "B": 1, "H": 1, "S": 1}
        *shapes, reset = self.shapes.sized(sizes)
        inputs = (
            *(torch.empty(shape, device=device) for shape in shapes),
            torch.empty(reset, dtype=torch.bool, device=device),
        )
        fused = self.fused_for(inputs)
        names = [name for name in self.backends if name not in ("auto", *FUSED)]
        return (*names, fused) if fused else tuple(names)

    def random_inputs(
        self,
        sizes: Mapping[str, int],
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, ...]:
        """Return random float inputs, without `reset`, given the size of each letter of `shapes`."""
        return self.shapes.random(sizes, self.maps, generator, dtype)


@functools.cache
def _recorded() -> dict[str, str]:
    digests: dict[str, str] = json.loads(DIGESTS.read_text())
    return digests


@functools.cache
def _say_once(text: str) -> None:
    if multiprocessing.parent_process() is None:  # child processes would repeat it
        warnings.warn(text, stacklevel=4)


@untraced
def _loop(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Run a loop outside `torch.compile`, which would unroll every step and recompile for other resets."""
    return function(*inputs)
