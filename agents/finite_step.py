"""A step of torch's optimizers that can be part of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class FiniteStep(torch.optim.Optimizer):
    """An optimizer of torch with a step that never synchronises with the host, for one group of parameters.

    Comes before torch's class among the bases; the state is that class's.
    """

    moments: ClassVar[tuple[str, ...]]
    """Names of a parameter's running moments, in the order in which the arithmetic takes them."""
    settings: ClassVar[tuple[str, ...]]
    """Names of the group's settings that the arithmetic takes last."""
    eager: ClassVar[Callable[..., None]]
    """The arithmetic in PyTorch."""

    def step_if_finite(
        self, finite: Tensor, lr: Tensor, scale: Tensor, arithmetic: Callable[..., None] | None = None
    ) -> None:
        """Like `eager` with the gradients in `grad`; `arithmetic` is an equivalent to take its place."""
        (group,) = self.param_groups
        parameters = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        states = [self._state_of(p) for p in parameters]
        *moments, steps = ([state[name] for state in states] for name in (*self.moments, "step"))
        settings = (group[name] for name in self.settings)
        (arithmetic or self.eager)(finite, parameters, gradients, *moments, steps, lr, scale, *settings)

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state.update({name: torch.zeros_like(parameter) for name in self.moments})
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(parameter.device)


def zero_unless(finite: Tensor, tensors: list[Tensor]) -> None:
    """Set tensors to zero, whatever they hold, unless `finite`, a bool scalar."""
    # NaN times zero is NaN, but its bits times zero are zero.
    torch._foreach_mul_([x.view(_BITS[x.itemsize]) for x in tensors], finite.to(torch.int32))
