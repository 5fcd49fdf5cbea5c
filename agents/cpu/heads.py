"""Both heads and the choice of actions in one call of C."""

from __future__ import annotations

from torch import Tensor, nn

from ...kernels.native import dense
from ..network import Agent, AgentOutput
from ..sampling_rng import Rng, exponential
from .modules import weights_of


def act(agent: Agent, y: Tensor, greedy: bool, rng: Rng | None) -> AgentOutput | None:
    """Return actions, logits and values from a core's output y `[B, n]`, like `Agent.heads` and `sample`.

    None if C cannot.
    """
    weights = weights_of(agent.policy, agent.baseline, kinds=(nn.Linear, nn.Linear))
    if not weights or not dense.takes(y, weights):
        return None
    exp_noise = None if greedy else exponential(y.new_empty(len(y), agent.policy.out_features), rng)
    return AgentOutput(*dense.heads(y, weights[:2], weights[2:], exp_noise))
