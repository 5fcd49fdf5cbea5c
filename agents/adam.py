"""Adam whose step can be part of a CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor

from .finite_step import FiniteStep, zero_unless


@torch.no_grad()
def adam_if_finite(
    finite: Tensor,
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    scale: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """If `finite`, update in place as Kingma and Ba (2015, Algorithm 1), g being `scale` times the gradient:
    `m = β1 m + (1 - β1) g`, `s = β2 s + (1 - β2) g²`, `p -= lr m̂ / (√ŝ + ε)`, and count the step t;
    m̂ is `m / (1 - β1^t)`, ŝ is `s / (1 - β2^t)`.

    `finite` (bool), `lr` and `scale` are scalars on the parameters' device. If not `finite`, gradients may
    hold anything and nothing else changes. Gradients may be written over.
    """
    torch._foreach_mul_(gradients, scale)
    zero_unless(finite, gradients)
    torch._foreach_add_(steps, finite.to(torch.float32), alpha=1)
    for moments, beta in zip((means, squares), betas, strict=True):
        torch._foreach_mul_(moments, torch.where(finite, beta, 1.0))
    torch._foreach_add_(means, gradients, alpha=1 - betas[0])
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - betas[1])
    count = torch._foreach_maximum(steps, 1.0)
    first, second = ([1 - beta**t for t in count] for beta in betas)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, [c.sqrt() for c in second])
    torch._foreach_add_(roots, eps)
    changes = torch._foreach_div(means, roots)
    torch._foreach_mul_(changes, [-lr * finite / c for c in first])
    torch._foreach_add_(parameters, changes)


class Adam(FiniteStep, torch.optim.Adam):
    """Adam of torch with a step that never synchronises with the host. No weight decay."""

    moments = ("exp_avg", "exp_avg_sq")
    settings = ("betas", "eps")
    eager = staticmethod(adam_if_finite)
