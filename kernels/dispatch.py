"""One record a rule: what it takes, what defines it, and which faster forms it has; calling it picks one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .precision import without_autocast
from .shapes import Shapes

FUSED = ("native", "triton")
BACKENDS = ("auto", "reference", "chunked", *FUSED)


class Fused(NamedTuple):
    """A fused form of a rule: one operator, differentiable, for a whole unroll."""

    operator: Callable[..., Any]
    """takes the rule's inputs and the name of the backend"""
    problem: Callable[[tuple[Tensor, ...]], str | None]
    """why it cannot take these inputs, which have passed `Shapes.check`; None if it can"""


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
    """what callers apply to an input, by name (a softmax to keys, ...): `random_inputs` applies it"""

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
            fused = _fused_on(inputs[0].device)
            if self.problem(fused, inputs) is None:
                return getattr(self, fused).operator(*inputs, fused)
            return _loop(self.in_pytorch(len(inputs[0])), *inputs)
        form = getattr(self, backend)
        if form is None:
            raise ValueError(f"{self.name}: {self._lacks(backend)}")
        if backend not in FUSED:
            return _loop(form, *inputs)
        problem = form.problem(inputs)
        if problem is not None:
            raise ValueError(f"{self.name}: {problem}")
        return form.operator(*inputs, backend)

    def problem(self, fused: str, inputs: tuple[Tensor, ...]) -> str | None:
        """Return why that fused backend cannot compute the rule for these inputs; None if it can."""
        form: Fused | None = getattr(self, fused)
        return self._lacks(fused) if form is None else form.problem(inputs)

    def in_pytorch(self, steps: int) -> Callable[..., Any]:
        """Return the fastest form in PyTorch for an unroll of this many steps."""
        if steps == 1 and self.step is not None:
            return self.reference if torch.is_grad_enabled() else self.step
        return self.chunked or self.reference

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that this rule has, whatever the device."""
        return ("auto", *(name for name in BACKENDS[1:] if getattr(self, name) is not None))

    def backends_on(self, device: torch.device, head_size: int) -> tuple[str, ...]:
        """Return the backends that compute the rule on a device in float32, `auto` left out."""
        sizes = dict.fromkeys(self.shapes.letters, head_size) | {"T": 1, "B": 1, "H": 1}
        *shapes, reset = self.shapes.sized(sizes)
        inputs = (
            *(torch.empty(shape, device=device) for shape in shapes),
            torch.empty(reset, dtype=torch.bool, device=device),
        )
        fused = _fused_on(device)  # Triton's interpreter computes on CPUs too, but is no backend to use there
        names = [name for name in self.backends if name not in ("auto", *FUSED)]
        return (*names, fused) if self.problem(fused, inputs) is None else tuple(names)

    def random_inputs(
        self,
        sizes: Mapping[str, int],
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, ...]:
        """Return random float inputs, without `reset`, given the size of each letter of `shapes`."""
        return self.shapes.random(sizes, self.maps, generator, dtype)

    def _lacks(self, backend: str) -> str:
        return f"this rule has no {backend!r} backend; choose from {', '.join(self.backends)}"


def _fused_on(device: torch.device) -> str:
    return "triton" if device.type == "cuda" else "native"


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _loop(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Keep loops out of `torch.compile`, which would compile every step, and again for other resets."""
    return function(*inputs)
