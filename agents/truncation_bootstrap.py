"""The value to bootstrap from where episodes were truncated, as at an unroll's end."""

from __future__ import annotations

import torch
from torch import Tensor

from .network import Agent
from .unroll import Unroll


@torch.no_grad()
def truncation_bootstrap(agent: Agent, batch: Unroll, discount: float) -> Tensor:
    """Return γ V(final observation) at the last step of truncated episodes, else 0: float32 `[T, B]`.

    Each of these episodes is unrolled once more with the current weights, from its first step in the batch.
    The final observation replaces the next episode's first one, and is read without the reset.

    Environments in NEXT_STEP mode are adapted (envs/autoreset.py): the step that they spend on a reset is a
    forced one, the last of the old episode, and its own observation is the final one. The bootstrap of such a
    step is the undiscounted V of that observation.
    """
    values = torch.zeros_like(batch.truncation_bootstrap)
    if batch.truncations is None:
        return values
    step, env, observation = batch.truncations
    first = _first_steps(batch.done[:, env].cpu(), step)
    final, episode = step + 1 - first, torch.arange(len(step))
    # Episodes are left-aligned; steps after a shorter one's end are padding, whose outputs are unused.
    time = (first + torch.arange(int(final.max()) + 1).unsqueeze(1)).clamp(max=len(batch.done) - 1)
    observations, dones = batch.observation[time, env], batch.done[time, env]
    observations[final, episode] = observation
    dones[final, episode] = False
    state = tuple(part[env] for part in batch.state)
    output, *_ = agent.unroll(observations, batch.reward[time, env], dones, state)
    value_of_final = output.baseline[final - 1, episode]
    discounted_next = discount * output.baseline[final, episode]
    values[step, env] = torch.where(batch.forced[step, env], value_of_final, discounted_next)
    return values


def _first_steps(done: Tensor, step: Tensor) -> Tensor:
    """Return the first step, in the batch, of the episode that contains each `step`; 0 if it began before.

    done bool `[T + 1, n]`, step int64 `[n]` -> int64 `[n]`, on the CPU.
    """
    at = torch.arange(len(done)).unsqueeze(1)
    return torch.where(done & (at <= step), at, 0).amax(0)
