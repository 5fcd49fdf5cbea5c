"""Small learners, random batches for them, and a comparison of two learners."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec, Episodes, Learner, LearnerConfig, Unroll

T, B, A = 6, 4, 3
CORES = (
    *("feedforward", "gated_feedforward", "lstm", "linear_transformer", "delta_net", "delta_rnn", "rdn"),
    *("gated_delta_net", "softmax_attention"),
)
"""Some of each kind: what is not theirs alone is the same for the others."""


def make_batch(agent: Agent, forced_share: float = 0.2, columns: int = B) -> Unroll:
    return Unroll(
        observation=torch.randn(T + 1, columns, 5),
        reward=torch.randn(T + 1, columns) * 2,
        done=torch.rand(T + 1, columns) < 0.2,
        action=torch.randint(A, (T, columns)),
        behavior_logits=torch.randn(T, columns, A),
        forced=torch.rand(T, columns) < forced_share,
        truncation_bootstrap=torch.zeros(T, columns),
        # what is left of attention's weights, `[B, L, H, N]`, is from 0 to 1
        state=tuple(
            (torch.rand_like if part.dim() == 4 else torch.randn_like)(part)
            for part in agent.initial_state(columns)
        ),
        version=0,
        episodes=Episodes([1.0], [2.0], [3], 1),
    )


def make_learner(core: str = "lstm", **config) -> Learner:
    return Learner(
        Agent(AgentSpec((5,), A, core=core, stem="mlp", reward_clip=1.0)),
        LearnerConfig(total_steps=10_000, **config),
    )


def make_clipping_learner(core: str = "lstm", **config) -> tuple[Learner, Unroll]:
    """Make a learner, and a batch whose gradient it clips to half of its norm."""
    learner = make_learner(core, **config)
    batch = make_batch(learner.agent)
    norm = Learner(copy.deepcopy(learner.agent), learner.config).update(batch)["grad_norm"]
    return Learner(learner.agent, replace(learner.config, max_grad_norm=norm / 2)), batch


def nan_reward(batch: Unroll) -> Unroll:
    """Return the batch with a NaN among its rewards."""
    reward = batch.reward.clone()
    reward[2, 1] = math.nan
    return replace(batch, reward=reward)


def memory(one: Learner) -> list[Tensor]:
    """Return all that an update changes."""
    states = (one.optimizer.state[p] for p in one.agent.parameters() if p in one.optimizer.state)
    return [*one.agent.parameters(), *(x for state in states for x in state.values())]


def assert_same(one: Learner, other: Learner) -> None:
    """Bit for bit."""
    assert (one.steps, one.version) == (other.steps, other.version)
    for x, y in zip(memory(one), memory(other), strict=True):
        assert torch.equal(x, y)
