"""RMSProp whose step can be part of a CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class RMSprop(torch.optim.RMSprop):
    """torch's, with a step that asks the host for nothing. No momentum, no weight decay."""

    @torch.no_grad()
    def step_if(self, sound: Tensor, lr: Tensor) -> None:
        """`step` with the learning rate `lr` if `sound`, else nothing, whatever the gradients hold.

        Both are scalars on the parameters' device. `s = α s + (1 - α) g²`, `p -= lr g / (√s + ε)`, rounded as
        in torch's `step` on a CPU. Gradients are zeroed unless `sound`.
        """
        (group,) = self.param_groups
        parameters = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        states = [self._state_of(p) for p in parameters]
        squares = [state["square_avg"] for state in states]
        # NaN times zero is NaN, but its bits times zero are zero.
        torch._foreach_mul_([g.view(_BITS[g.itemsize]) for g in gradients], sound.to(torch.int32))
        torch._foreach_add_([state["step"] for state in states], sound.to(torch.float32), alpha=1)
        torch._foreach_mul_(squares, torch.where(sound, group["alpha"], 1.0))
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        changes = torch._foreach_mul(gradients, -lr)
        torch._foreach_div_(changes, roots)
        torch._foreach_add_(parameters, changes)

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
