"""A batch is learned from in several passes and minibatches, each environment once in each pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_batches import A, B, T, make_batch, make_learner

from deltabeast.agents import Agent, AgentSpec, Episodes, Learner, LearnerConfig, Unroll
from deltabeast.agents.normaliser import moments
from deltabeast.agents.reuse import minibatches, select
from deltabeast.agents.truncations import Truncations


def numbered(columns: int) -> Unroll:
    """Return a batch whose rewards name step and environment: 100 t + b."""
    learner = make_learner()
    batch = make_batch(learner.agent, columns=columns)
    names = 100.0 * torch.arange(T + 1).unsqueeze(1) + torch.arange(columns)
    return replace(batch, reward=names, state=tuple(x.clone() for x in batch.state))


def orders(batch: Unroll, passes: int, size: int | None, *seed: int) -> list[list[int]]:
    return [part.reward[0].int().tolist() for part in minibatches(batch, passes, size, seed)]


def test_once_whole_is_the_batch_itself() -> None:
    batch = numbered(4)
    for size in (None, 4):
        assert [part is batch for part in minibatches(batch, 1, size)] == [True]
    again = [*minibatches(batch, 3)]
    assert [part.counted for part in again] == [None, None, "itself"] and again[2] is batch
    assert all(part.observation is batch.observation for part in again), "nothing is copied"


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_each_pass_has_each_environment_once(size: int) -> None:
    batch = numbered(6)
    drawn = orders(batch, 3, size, 5)
    assert len(drawn) == 3 * 6 // size and all(len(each) == size for each in drawn)
    for passed in range(3):
        whole = drawn[passed * 6 // size : (passed + 1) * 6 // size]
        assert sorted(b for part in whole for b in part) == [*range(6)]


def test_a_size_that_leaves_a_remainder_is_refused() -> None:
    """No minibatch would be the last, so that nothing of the batch would count."""
    with pytest.raises(ValueError, match="minibatches of 4 trajectories: give a divisor of the batch's 6"):
        next(minibatches(numbered(6), 2, 4))


def test_orders_follow_from_the_seed_alone() -> None:
    batch = numbered(12)
    drawn = orders(batch, 2, 3, 5, 7)
    assert drawn == orders(batch, 2, 3, 5, 7)
    assert drawn[:4] != drawn[4:], "another order in the second pass"
    assert drawn != orders(batch, 2, 3, 5, 8) and drawn != orders(batch, 2, 3, 6, 7)


def test_all_tensors_are_of_the_same_environments() -> None:
    batch = numbered(5)
    for part in minibatches(batch, 2, 1, (3,)):
        (b,) = part.reward[0].int().tolist()
        for x, whole in zip(part.tensors()[:7], batch.tensors()[:7], strict=True):
            assert torch.equal(x, whole[:, b : b + 1])
        for x, whole in zip(part.state, batch.state, strict=True):
            assert torch.equal(x, whole[b : b + 1])
        assert part.version == batch.version


def test_the_batch_counts_with_its_last_minibatch() -> None:
    batch = numbered(4)
    parts = [*minibatches(batch, 3, 2)]
    assert all(part.counted is None for part in parts[:-1]) and parts[-1].counted is batch


def test_truncations_go_with_their_environments() -> None:
    """Steps 1 and 4 of environment 2, step 3 of environment 0."""
    steps, envs = torch.tensor([1, 3, 4]), torch.tensor([2, 0, 2])
    batch = replace(numbered(4), truncations=Truncations(steps, envs, torch.arange(3.0).unsqueeze(1)))
    part = select(batch, torch.tensor([3, 2]))
    assert part.truncations is not None
    assert part.truncations.step.tolist() == [1, 4] and part.truncations.env.tolist() == [1, 1]
    assert part.truncations.observation.flatten().tolist() == [0, 2]
    both = select(batch, torch.tensor([0, 2])).truncations
    assert both is not None and sorted(zip(both.step.tolist(), both.env.tolist(), strict=True)) == [
        (1, 1),
        (3, 0),
        (4, 1),
    ]
    assert select(batch, torch.tensor([1, 3])).truncations is None


def test_steps_episodes_and_statistics_count_once_at_the_end(seed: int) -> None:
    """So that all of a batch is normalised as it was when the actor saw it."""
    spec = AgentSpec((5,), A, core="lstm", stem="mlp", normalised=(0, 3))
    learner = Learner(Agent(spec), LearnerConfig(total_steps=10_000, normalise_rewards=True))
    batch = make_batch(learner.agent)
    batch.episodes.return_moments.append(moments(torch.tensor([[1.0], [5.0]])).numpy())
    assert learner.agent.normaliser is not None
    before = learner.agent.normaliser.statistics.clone()
    for number, part in enumerate(minibatches(batch, 3, 2)):
        assert torch.equal(learner.agent.normaliser.statistics, before) and learner.steps == 0
        assert learner.reward_divisor == 1.0
        partial_update = learner.backward(part)
        assert partial_update.episodes == (batch.episodes if number == 5 else Episodes())
        learner.step([partial_update])
    assert learner.steps == T * B and learner.version == 6 and learner.reward_divisor == 2.0
    count, mean, _ = learner.agent.normaliser.statistics
    assert count.eq(T * B).all()
    torch.testing.assert_close(mean, batch.observation[:-1].flatten(0, 1).double().mean(0))


def test_a_minibatch_is_learned_from_as_those_environments_alone(seed: int) -> None:
    """The gradient of a part is that of a batch of the same environments."""
    learner = make_learner()
    batch = make_batch(learner.agent)
    grads = []
    for part in (select(batch, torch.tensor([1, 3])), batch.map(lambda dim, x: x.narrow(dim, 1, 3))):
        learner.backward(part)
        grads.append([p.grad.clone() for p in learner.agent.parameters() if p.grad is not None])
    learner.backward(select(batch, torch.tensor([2])))
    for with_2, both, alone in zip(grads[1], grads[0], learner.agent.parameters(), strict=True):
        torch.testing.assert_close(both + alone.grad, with_2, rtol=1e-3, atol=1e-5)
