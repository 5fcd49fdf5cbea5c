"""An update's functions in C."""

from __future__ import annotations

from collections.abc import Collection

from ..learner import UpdateOps
from .agent import FastAgent
from .loss import fused_actor_critic
from .optimizer import fused_adam_if_finite, fused_rmsprop_if_finite


def fused_ops(fast: FastAgent, parts: Collection[str], eager: UpdateOps) -> UpdateOps:
    """Return `eager` with the functions of `parts` in C; `fast` has those of the agent."""
    return UpdateOps(
        unroll=fast.unroll if fast.has_own_unroll else eager.unroll,
        actor_critic=fused_actor_critic if "loss" in parts else eager.actor_critic,
        rmsprop=fused_rmsprop_if_finite if "rmsprop" in parts else eager.rmsprop,
        adam=fused_adam_if_finite if "adam" in parts else eager.adam,
    )
