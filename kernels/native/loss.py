"""The actor-critic loss and its gradients in two calls of C, where PyTorch makes a hundred small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..once import differentiable_once
from . import compiling

_SOURCE = "loss.c"
Normalise = Callable[[Tensor], Tensor]


def is_supported(*xs: Tensor) -> bool:
    """Return whether C supports these tensors: on a CPU, floating ones in float32."""
    if compiling.is_watched():
        return False
    right = all(x.is_cpu and (x.dtype is torch.float32 or not x.is_floating_point()) for x in xs)
    return right and compiling.unsupported_reason(_SOURCE) is None


def actor_critic(
    logits: Tensor, values: Tensor, settings: Sequence[float], normalise: Normalise | None, *batch: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss, a scalar, and what to log of it: logits `[T + 1, B, A]`, values `[T + 1, B]`.

    `settings`: discount, costs of baseline and entropy, the log from which on an importance ratio counts as
    clipped, and V-trace's λ. `normalise` replaces the advantages `[T, B]` by normalised ones before they are
    weighted. `batch`: the logits that acted `[T, B, A]`, actions and rewards `[T, B]`, done `[T + 1, B]`, and
    where actions were forced `[T, B]`. To log, `[9]`: the loss, the policy's and the baseline's, the mean
    entropy, the share of clipped ratios, the largest log of one, the share of forced actions, the KL of the
    policy from the one that acted, and the effective sample size as a share.
    """
    loss, metrics = _ActorCritic.apply(logits, values, torch.tensor(settings), normalise, *batch)
    return loss, metrics


class _ActorCritic(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        values: Tensor,
        settings: Tensor,
        normalise: Normalise | None,
        *batch: Tensor,
    ) -> tuple[Tensor, Tensor]:
        steps, B, A = logits.shape
        sizes = steps - 1, B, A
        logits, values, behavior, action, reward, done, forced = (
            x.contiguous() for x in (logits, values, *batch)
        )
        inputs = logits, values, behavior, action, reward, done, forced
        advantages, weights = torch.empty(sizes[:2]), torch.empty(sizes[:2])
        dvalues, dlogits = torch.empty(steps, B), torch.empty(steps, B, A)
        metrics = torch.empty(9)
        outputs = advantages, weights, dvalues, metrics
        compiling.call(_SOURCE, None, "vtrace", sizes, settings, *inputs, *outputs)
        if normalise is not None:
            advantages = normalise(advantages).contiguous()
        chosen = action, forced, weights.mul_(advantages)
        compiling.call(_SOURCE, None, "policy", sizes, settings, logits, *chosen, dlogits, metrics)
        ctx.save_for_backward(dlogits, dvalues)
        ctx.mark_non_differentiable(metrics)
        return metrics[0].clone(), metrics

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dloss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dlogits, dvalues = ctx.saved_tensors
        return dlogits * dloss, dvalues * dloss, *[None] * 7
