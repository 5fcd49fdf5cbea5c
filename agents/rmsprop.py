"""RMSProp whose step can be part of a CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor

from .finite_step import FiniteStep, zero_unless


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


class RMSprop(FiniteStep, torch.optim.RMSprop):
    """RMSProp of torch with a step that never synchronises with the host. No momentum, no weight decay."""

    moments = ("square_avg",)
    settings = ("alpha", "eps")
    eager = staticmethod(rmsprop_if_finite)
