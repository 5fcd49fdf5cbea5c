"""The value to bootstrap from where episodes were truncated, as at an unroll's end."""

from __future__ import annotations

import torch
from torch import Tensor

from .network import Agent
from .unroll import Unroll


@torch.no_grad()
def truncation_bootstrap(agent: Agent, batch: Unroll, discount: float) -> Tensor:
    """Return γ V of the last observation of each truncated episode, at its last step: `[T, B]`, else zero.

    Each of these episodes is unrolled once more, from its first step in the batch on, and ends with its last
    observation, where the batch has the next episode's first: so the core reads it in the state that it had
    there, with the current weights. A last step that was forced is no step of the agent: it read the last
    observation itself, and the bootstrap is V of that.
    """
    values = torch.zeros_like(batch.truncation_bootstrap)
    if batch.truncations is None:
        return values
    step, column, observation = batch.truncations
    first = _first_steps(batch.done[:, column].cpu(), step)
    last, episode = step + 1 - first, torch.arange(len(step))
    # Episodes are left-aligned; rows after a shorter one's end are padding, whose outputs are unused.
    rows = (first + torch.arange(int(last.max()) + 1).unsqueeze(1)).clamp(max=len(batch.done) - 1)
    observations, dones = batch.observation[rows, column], batch.done[rows, column]
    observations[last, episode] = observation
    dones[last, episode] = False
    state = tuple(part[column] for part in batch.state)
    output, *_ = agent.unroll(observations, batch.reward[rows, column], dones, state)
    value_of_final = output.baseline[last - 1, episode]
    discounted_next = discount * output.baseline[last, episode]
    values[step, column] = torch.where(batch.forced[step, column], value_of_final, discounted_next)
    return values


def _first_steps(done: Tensor, step: Tensor) -> Tensor:
    """Return where the episodes that `step [n]` is part of begin; 0 if before. `done [T + 1, n]`."""
    at = torch.arange(len(done)).unsqueeze(1)
    return torch.where(done & (at <= step), at, 0).amax(0)
