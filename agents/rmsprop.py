"""RMSProp whose step can be part of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def zero_unless(finite: Tensor, tensors: list[Tensor]) -> None:
    """Set tensors to zero, whatever they hold, unless `finite`, a bool scalar."""
    # NaN times zero is NaN, but its bits times zero are zero.
    torch._foreach_mul_([x.view(_BITS[x.itemsize]) for x in tensors], finite.to(torch.int32))


@torch.no_grad()
def rmsprop_if_finite(
    finite: Tensor,
    parameters: list[Tensor],
    gradients: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    scale: Tensor,
    alpha: float,
    eps: float,
) -> None:
    """If `finite`, update in place: `s = α s + (1 - α) g²`, `p -= lr g / (√s + ε)`, and count the step.

    g is `scale` times the gradient. `finite` (bool), `lr` and `scale` are scalars on the parameters' device.
    If not `finite`, gradients may hold anything and nothing else changes. Gradients may be written over.
    """
    torch._foreach_mul_(gradients, scale)
    zero_unless(finite, gradients)
    torch._foreach_add_(steps, finite.to(torch.float32), alpha=1)
    torch._foreach_mul_(squares, torch.where(finite, alpha, 1.0))
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - alpha)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, eps)
    changes = torch._foreach_mul(gradients, -lr)
    torch._foreach_div_(changes, roots)
    torch._foreach_add_(parameters, changes)


class RMSprop(torch.optim.RMSprop):
    """RMSprop of torch with a step that never synchronises with the host. No momentum, no weight decay."""

    def step_if_finite(
        self, finite: Tensor, lr: Tensor, scale: Tensor, arithmetic: Callable[..., None] = rmsprop_if_finite
    ) -> None:
        """Like `rmsprop_if_finite` with the gradients in `grad`; `arithmetic` is that or an equivalent."""
        (group,) = self.param_groups
        parameters = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        states = [self._state_of(p) for p in parameters]
        squares, steps = ([state[name] for state in states] for name in ("square_avg", "step"))
        alpha, eps = group["alpha"], group["eps"]
        arithmetic(finite, parameters, gradients, squares, steps, lr, scale, alpha, eps)

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["square_avg"] = torch.zeros_like(parameter)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(parameter.device)
