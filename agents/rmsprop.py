"""RMSProp whose step can be part of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def rmsprop_if(
    sound: Tensor,
    parameters: list[Tensor],
    gradients: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    alpha: float,
    eps: float,
) -> None:
    """`s = α s + (1 - α) g²`, `p -= lr g / (√s + ε)` and a step counted, in place, if `sound`; else nothing.

    `sound` (bool) and `lr` are scalars on the parameters' device. Gradients that are not sound may hold
    anything, and are zeroed. Rounded as in torch's RMSprop on a CPU.
    """
    # NaN times zero is NaN, but its bits times zero are zero.
    torch._foreach_mul_([g.view(_BITS[g.itemsize]) for g in gradients], sound.to(torch.int32))
    torch._foreach_add_(steps, sound.to(torch.float32), alpha=1)
    torch._foreach_mul_(squares, torch.where(sound, alpha, 1.0))
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - alpha)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, eps)
    changes = torch._foreach_mul(gradients, -lr)
    torch._foreach_div_(changes, roots)
    torch._foreach_add_(parameters, changes)


class RMSprop(torch.optim.RMSprop):
    """torch's, with a step that asks the host for nothing. No momentum, no weight decay."""

    def step_if(self, sound: Tensor, lr: Tensor, arithmetic: Callable[..., None] = rmsprop_if) -> None:
        """`step` with the learning rate `lr` if `sound`; `arithmetic` computes what `rmsprop_if` does."""
        (group,) = self.param_groups
        parameters = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        states = [self._state_of(p) for p in parameters]
        squares, steps = ([state[name] for state in states] for name in ("square_avg", "step"))
        alpha, eps = group["alpha"], group["eps"]
        arithmetic(sound, parameters, gradients, squares, steps, lr, alpha, eps)

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
