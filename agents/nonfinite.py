"""Find the first tensor that makes an update non-finite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .unroll import Unroll


class NonFiniteError(RuntimeError):
    """A loss or a gradient is NaN or infinite; the weights are those of before the update."""


def check_loss(metrics: Mapping[str, Tensor], batch: Unroll, agent: nn.Module, update: int) -> None:
    """Raise NonFiniteError if the total loss of this update is not finite.

    It names the first non-finite tensor among the batch's, the parameters and the metrics.
    """
    if not torch.isfinite(metrics["total_loss"]):
        _fail("loss", {**_inputs(batch), **dict(agent.named_parameters()), **metrics}, update, _remedy(batch))


def check_gradients(grad_norm: Tensor, agent: nn.Module, update: int) -> None:
    """Raise NonFiniteError if the norm of all `grad` is not finite; it names the first gradient at fault."""
    if not torch.isfinite(grad_norm):
        parameters = agent.named_parameters()
        named = {f"gradient of {name}": p.grad for name, p in parameters if p.grad is not None}
        _fail("gradient norm", named, update)


def _fail(what: str, suspects: Mapping[str, Tensor], update: int, remedy: str = "") -> None:
    for name, tensor in suspects.items():
        if not torch.isfinite(tensor).all():
            raise NonFiniteError(f"{what} of update {update} is not finite: first in {name}{remedy}")
    raise NonFiniteError(f"{what} of update {update} overflowed{remedy}")


def _remedy(batch: Unroll) -> str:
    largest = float(batch.reward.abs().max())
    return f" (rewards reach {largest:.1e}: give a smaller --reward-scale)" if largest > 1e6 else ""


def _inputs(batch: Unroll) -> dict[str, Tensor]:
    state = {f"initial state {i}": part for i, part in enumerate(batch.state)}
    last = {} if batch.truncations is None else {"last observations": batch.truncations.observation}
    return {
        "observations": batch.observation,
        **last,
        "rewards": batch.reward,
        "behaviour logits": batch.behavior_logits,
        **state,
    }
