"""Rewards are divided by the deviation of discounted returns, which go on from one unroll to the next."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
import torch
from counting_env import CountingEnv
from numpy.typing import NDArray
from random_batches import make_batch, make_learner

from deltabeast.agents import Actor, Agent, AgentSpec, Unroll
from deltabeast.agents.normaliser import merge
from deltabeast.agents.returns import Returns, std
from deltabeast.agents.weights import SharedWeights

DISCOUNT = 0.9


def by_definition(reward: NDArray[np.float64], done: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the discounted return so far at each step `[T, B]`; `done` are episodes' last steps."""
    out = np.zeros_like(reward)
    for t, b in np.ndindex(*reward.shape):
        begin = max((s + 1 for s in range(t) if done[s, b]), default=0)
        out[t, b] = sum(DISCOUNT ** (t - s) * reward[s, b] for s in range(begin, t + 1))
    return out


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_moments_are_those_of_returns_since_their_episodes_began(share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    reward, done = rng.normal(1, 3, (31, 4)).astype(np.float32), rng.random((31, 4)) < share
    returns, pieces = Returns(4, DISCOUNT), []
    for unroll in np.split(np.arange(31), [1, 2, 12]):
        for t in unroll:
            returns.add(reward[t], done[t])
        pieces.append(torch.from_numpy(returns.pop_moments()))
    want = by_definition(reward.astype(np.float64), done)
    count, mean, squares = reduce(merge, pieces)[:, 0].tolist()
    assert count == want.size
    np.testing.assert_allclose([mean, squares / count], [want.mean(), want.var()], rtol=1e-9)
    np.testing.assert_allclose(std(reduce(merge, pieces)), want.std(), rtol=1e-9)


def test_what_does_not_vary_divides_by_one() -> None:
    assert std(torch.zeros(3, 1)) == 1
    assert std(torch.tensor([[9.0], [3.0], [0.0]])) == 1


def test_an_actor_tells_what_its_environments_paid(seed: int) -> None:
    """CountingEnv's episodes take 7 steps."""
    env = CountingEnv((7, 7, 7))
    agent = Agent(AgentSpec((3,), 4, "lstm", "mlp"))
    actor = Actor(env, agent, SharedWeights(), 5, seed=seed, discount=DISCOUNT)
    unrolls = [actor.collect() for _ in range(4)]
    reward = torch.cat([unroll.reward[1:] for unroll in unrolls]).double().numpy()
    done = torch.cat([unroll.done[1:] for unroll in unrolls]).numpy()
    assert done.any() and reward.any()
    found = [torch.from_numpy(moments) for unroll in unrolls for moments in unroll.episodes.return_moments]
    assert len(found) == 4
    np.testing.assert_allclose(std(reduce(merge, found)), by_definition(reward, done).std(), rtol=1e-6)
    assert not Actor(env, agent, SharedWeights(), 5, seed=seed).collect().episodes.return_moments


def test_environments_that_begin_anew_begin_their_returns_anew(seed: int) -> None:
    """As where a run resumes that is not deterministic; CountingEnv's episodes take 7 steps."""
    env = CountingEnv((7, 7, 7))
    agent = Agent(AgentSpec((3,), 4, "lstm", "mlp"))
    actor = Actor(env, agent, SharedWeights(), 3, seed=seed, discount=DISCOUNT)
    actor.collect()
    actor.load_state_dict(actor.state_dict())
    unroll = actor.collect()
    want = by_definition(unroll.reward[1:].double().numpy(), unroll.done[1:].numpy())
    (moments,) = unroll.episodes.return_moments
    np.testing.assert_allclose(std(torch.from_numpy(moments)), want.std(), rtol=1e-6)
    assert want.std() > 0.1


def with_returns(batch: Unroll, *returns: float) -> Unroll:
    seen = np.array(returns)
    moments = np.array([[len(seen)], [seen.mean()], [np.square(seen - seen.mean()).sum()]])
    return replace(batch, episodes=replace(batch.episodes, return_moments=[moments]))


def test_the_learner_divides_by_the_deviation_of_all_before_and_then_clips(seed: int) -> None:
    learner = make_learner(normalise_rewards=True)
    batch = make_batch(learner.agent)
    assert learner.update(with_returns(batch, 1.0, 5.0))["reward_divisor"] == 2  # of which it learned by 1
    assert learner.update(with_returns(batch, 3.0, 3.0))["reward_divisor"] == pytest.approx(2**0.5)
    divided = replace(batch, reward=torch.cat([batch.reward[:1], batch.reward[1:] / 2**0.5]))
    clipped, clipped_undivided = (x.reward.clip(-1, 1) for x in (divided, batch))
    assert (divided.reward.abs() > 1).any() and not torch.equal(clipped, clipped_undivided)
    plain = make_learner()
    plain.agent.load_state_dict(learner.agent.state_dict())
    read = learner.agent.core_input  # the core reads rewards as they are paid
    learner.agent.core_input = lambda features, reward, *rest: read(features, batch.reward.flatten(), *rest)
    plain.agent = learner.agent
    want, _ = plain.loss(divided)
    torch.testing.assert_close(learner.loss(batch)[0], want, rtol=1e-6, atol=1e-6)


def test_statistics_are_of_all_processes_and_go_on(seed: int) -> None:
    learner = make_learner(normalise_rewards=True)
    batch = make_batch(learner.agent)
    parts = [learner.backward(with_returns(batch, *returns)) for returns in ((1.0, 2.0), (7.0,), (2.0, 4.0))]
    learner.step(parts)
    want = np.std([1.0, 2.0, 7.0, 2.0, 4.0])
    assert learner.reward_divisor == pytest.approx(want)
    other = make_learner(normalise_rewards=True)
    other.load_state_dict(learner.state_dict())
    assert other.reward_divisor == pytest.approx(want)
    other.agent.load_state_dict(learner.agent.state_dict())
    assert torch.equal(other.loss(batch)[0], learner.loss(batch)[0])
    other.set_reward_divisor(100.0)
    assert not torch.equal(other.loss(batch)[0], learner.loss(batch)[0])


def test_nothing_is_divided_unless_asked(seed: int) -> None:
    learner = make_learner()
    before = learner.loss(batch := make_batch(learner.agent))[0]
    learner.set_reward_divisor(100.0)
    assert torch.equal(learner.loss(batch)[0], before)
    assert "reward_divisor" not in learner.update(batch) and "returns" not in learner.state_dict()
    assert learner.backward(batch).returns is None
