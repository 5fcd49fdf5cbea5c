"""Small learners and random batches for them."""

from __future__ import annotations

import torch

from deltabeast.agents import Agent, AgentSpec, Episodes, Learner, LearnerConfig, Unroll

T, B, A = 6, 4, 3


def make_batch(agent: Agent, forced_share: float = 0.2, columns: int = B) -> Unroll:
    return Unroll(
        frame=torch.randn(T + 1, columns, 5),
        reward=torch.randn(T + 1, columns) * 2,
        done=torch.rand(T + 1, columns) < 0.2,
        action=torch.randint(A, (T, columns)),
        behavior_logits=torch.randn(T, columns, A),
        forced=torch.rand(T, columns) < forced_share,
        state=tuple(torch.randn_like(part) for part in agent.initial_state(columns)),
        version=0,
        episodes=Episodes([1.0], [2.0], [3], 1),
    )


def make_learner(core: str = "lstm", **config) -> Learner:
    return Learner(
        Agent(AgentSpec((5,), A, core=core, stem="mlp")), LearnerConfig(total_steps=10_000, **config)
    )
