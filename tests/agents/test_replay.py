"""What a replay buffer stores, draws and recomputes; learning from fresh and replayed unrolls together."""

from __future__ import annotations

import functools
import io
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from random_batches import CORES, A, B, T, make_batch, make_learner
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec, Episodes, Learner, LearnerConfig, Unroll, join, split
from deltabeast.agents.normaliser import moments
from deltabeast.agents.replay import ReplayBuffer, with_replayed
from deltabeast.agents.reuse import minibatches, select
from deltabeast.agents.state_file import load_state
from deltabeast.agents.truncations import Truncations

SLOTS = 4


def origins(number: int, envs: Tensor | None = None) -> Tensor:
    envs = torch.arange(B) if envs is None else envs
    return torch.stack([envs, torch.full_like(envs, number)], 1)


def numbered(agent: Agent, number: int) -> Unroll:
    """Return a batch by weights of version 10 n, whose numbers name it and the environment: 10 n + b."""
    batch = make_batch(agent)
    name = 10.0 * number + torch.arange(B)

    def fill(dim: int, x: Tensor) -> Tensor:
        shape = [1] * x.dim()
        shape[dim] = B
        return name.view(shape).expand(x.shape).to(x.dtype, copy=True)

    return replace(batch.map(fill), version=10 * number, origin=origins(number))


def filled(agent: Agent, added: int, **given) -> ReplayBuffer:
    buffer = ReplayBuffer(SLOTS, agent, **given)
    for number in range(added):
        buffer.add(numbered(agent, number))
    return buffer


def drawn(buffer: ReplayBuffer, version: int = 1000, times: int = 40) -> list[int]:
    """Return the names of 32 unrolls in each of so many draws, of learners of `version` and later."""
    names: list[int] = []
    for later in range(times):
        unroll = buffer.sample(32, version + later)
        names += [] if unroll is None else unroll.reward[0].int().tolist()
    return names


@pytest.mark.parametrize("added", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 23])
def test_all_but_the_batch_just_added_and_what_is_overwritten_is_drawn(added: int) -> None:
    buffer = filled(make_learner().agent, added)
    there = range(max(0, added - SLOTS), added - 1)
    assert {*drawn(buffer)} == {10 * number + env for number in there for env in range(B)}
    assert len(buffer) == min(added, SLOTS)


@pytest.mark.parametrize(
    ("version", "numbers"), [(71, ()), (70, (6,)), (69, (6,)), (60, (5, 6)), (50, (4, 5, 6))]
)
def test_what_is_too_old_is_not_drawn(version: int, numbers: tuple[int, ...]) -> None:
    """Of versions 40 to 70, at most ten updates old."""
    buffer = filled(make_learner().agent, 8, max_age=10)
    names = {name for _ in range(50) for name in drawn(buffer, version, 1)}
    assert names <= {10 * number + env for number in numbers for env in range(B)}
    assert bool(names) == bool(numbers)


def test_draws_are_uniform() -> None:
    counts = Counter(drawn(filled(make_learner().agent, 6), times=400))
    mean = 32 * 400 / 12
    assert len(counts) == 12 and all(abs(count - mean) < 5 * mean**0.5 for count in counts.values())


def test_draws_follow_from_seed_and_version_alone() -> None:
    agent = make_learner().agent
    one, same, other = (filled(agent, 6, seed=(seed, 1)) for seed in (3, 3, 4))
    assert drawn(one, 7, 1) == drawn(same, 7, 1) == drawn(one, 7, 1)
    assert drawn(one, 7, 1) != drawn(other, 7, 1)
    assert drawn(one, 7, 1) != drawn(one, 8, 1)
    assert drawn(one, 7, 1) != drawn(filled(agent, 6, seed=(3, 2)), 7, 1), "another process"


def test_all_tensors_are_copies_of_the_same_unroll() -> None:
    agent = make_learner("rdn").agent
    buffer, batch = ReplayBuffer(2, agent), numbered(agent, 3)
    buffer.add(batch)
    for x in batch.tensors():  # an actor may reuse its memory
        x.zero_()
    buffer.add(numbered(agent, 4))
    unroll = buffer.sample(9, 50)
    assert unroll is not None and unroll.replayed is not None
    names = unroll.reward[0]
    assert unroll.observation.shape == (T + 1, 9, 5) and unroll.action.shape == (T, 9)
    assert unroll.replayed.tolist() == [30] * 9 and len(set(names.tolist())) > 1

    def check(dim: int, x: Tensor) -> Tensor:
        assert torch.equal(
            x, names.to(x.dtype).view([-1 if d == dim else 1 for d in range(x.dim())]).expand_as(x)
        )
        return x

    unroll.map(check)
    assert unroll.episodes == Episodes(), "no game ends twice"


def test_truncations_follow_their_unrolls() -> None:
    """Steps 1 and 4 of environment 2, step 3 of environment 0; final observations name them."""
    agent, buffer = make_learner().agent, ReplayBuffer(3, make_learner().agent)
    for number in range(5):
        steps, envs = torch.tensor([1, 3, 4]), torch.tensor([2, 0, 2])
        final = (100.0 * number + 10 * envs + steps).unsqueeze(1)
        buffer.add(replace(numbered(agent, number), truncations=Truncations(steps, envs, final)))
    unroll = buffer.sample(16, 50)
    assert unroll is not None and unroll.truncations is not None
    names = unroll.reward[0].int().tolist()
    expected = {
        (step, column, 100 * (name // 10) + 10 * (name % 10) + step)
        for column, name in enumerate(names)
        for step in {0: (3,), 2: (1, 4)}.get(name % 10, ())
    }
    step, env, observation = unroll.truncations
    found = zip(step.tolist(), env.tolist(), observation.flatten().int().tolist(), strict=True)
    assert sorted(found) == sorted(expected) and len({name // 10 for name in names}) == 2


def test_fewer_than_two_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="two slots or more, got 1"):
        ReplayBuffer(1, make_learner().agent)


@pytest.mark.parametrize("added", [3, 6])
def test_a_restored_buffer_goes_on_alike(added: int, seed: int) -> None:
    """Through a file, as a checkpoint has it, with burn-in, which needs the origins."""
    agent = make_learner("lstm").agent
    one, other = (ReplayBuffer(SLOTS, agent, burn_in=2) for _ in range(2))

    def batch(number: int) -> Unroll:
        truncations = Truncations(torch.tensor([2]), torch.tensor([number % B]), torch.randn(1, 5))
        both = replace(make_batch(agent), version=number, origin=origins(number))
        return replace(both, truncations=truncations if number % 2 else None)

    for number in range(added):
        one.add(batch(number))
    content = io.BytesIO()
    torch.save(one.state_dict(), content)
    other.load_state_dict(load_state(content.getvalue()))
    for number in range(added, added + 6):
        next_one = batch(number)
        one.add(next_one)
        other.add(next_one)
        a, b = one.sample(7, number), other.sample(7, number)
        assert a is not None and b is not None and (a.replayed == b.replayed).all()  # type: ignore[union-attr]
        assert all(map(torch.equal, a.tensors(), b.tensors()))
        assert (a.truncations is None) == (b.truncations is None)
        assert all(map(torch.equal, a.truncations or (), b.truncations or ()))


def trajectory(agent: Agent, length: int, resets: str) -> list[Unroll]:
    """Cut B long trajectories into unrolls in float64, with stored states that no weights explain."""
    done = {
        "none": torch.zeros(length * T + 1, B),
        "every": torch.ones(length * T + 1, B),
        "some": torch.rand(length * T + 1, B) < 0.15,
    }.get(resets, torch.zeros(length * T + 1, B))
    if resets in ("first", "last"):  # of each unroll
        done[0 if resets == "first" else T - 1 :: T] = 1
    observation = torch.randn(length * T + 1, B, 5, dtype=torch.float64)
    reward = torch.randn(length * T + 1, B, dtype=torch.float64)
    unrolls = []
    for number in range(length):
        steps = slice(number * T, (number + 1) * T + 1)
        unroll = make_batch(agent)
        state = tuple(x.double() for x in unroll.state)
        unrolls.append(
            replace(
                unroll,
                observation=observation[steps],
                reward=reward[steps],
                done=done[steps].bool(),
                state=state,
                origin=origins(number),
            )
        )
    return unrolls


def with_resets() -> list[Any]:
    """Every core, of which one of each kind has all resets in the short run."""
    return [
        pytest.param(core, resets, marks=[] if short else [pytest.mark.long])
        for core, resets in product(CORES, ["none", "first", "last", "every", "some"])
        for short in [core in ("lstm", "rdn", "softmax_attention") or resets == "some"]
    ]


@pytest.mark.parametrize(("core", "resets"), with_resets())
def test_a_state_is_burned_in_as_the_agent_would_step(core: str, resets: str, seed: int) -> None:
    """Step by step, from the state stored two unrolls earlier, fewer where these are overwritten; each batch
    has the environments in other columns."""
    agent = Agent(AgentSpec((5,), A, core=core, stem="mlp", reward_clip=1.0)).double()
    agent.stem.float()  # it casts observations, and alone rounds
    buffer, unrolls = ReplayBuffer(SLOTS, agent, burn_in=2), trajectory(agent, 6, resets)
    orders = [torch.randperm(B) for _ in unrolls]
    for unroll, order in zip(unrolls, orders, strict=True):
        buffer.add(replace(select(unroll, order), origin=unroll.origin[order]))  # type: ignore[index]
    sampled = buffer.sample(24, 1)
    assert sampled is not None

    @functools.cache
    def stepped(number: int, env: int) -> tuple[Tensor, ...]:
        first = max(number - 2, 2)  # of the six, four are stored
        state = tuple(x[env : env + 1] for x in unrolls[first].state)
        for unroll in unrolls[first:number]:
            for t in range(T):
                step = (x[t, env : env + 1] for x in (unroll.observation, unroll.reward, unroll.done))
                _, state = agent.act(*step, state, greedy=True)
        return state

    seen = set()
    with torch.no_grad():
        for column in range(24):
            ((number, env),) = (
                (number, env)
                for number in (2, 3, 4)
                for env in range(B)
                if torch.equal(sampled.observation[:, column], unrolls[number].observation[:, env])
            )
            for x, expected in zip(sampled.state, stepped(number, env), strict=True):
                torch.testing.assert_close(x[column : column + 1], expected, rtol=1e-5, atol=1e-6)
            seen.add(number)
    assert seen == {2, 3, 4}


@pytest.mark.parametrize("what", ["no burn-in", "no origins", "a gap", "another actor"])
def test_a_state_stays_as_stored_without_predecessors(what: str, seed: int) -> None:
    agent = make_learner("lstm").agent
    buffer = ReplayBuffer(SLOTS, agent, burn_in=0 if what == "no burn-in" else 2)
    batches = []
    for number in range(3):
        batch = replace(make_batch(agent), origin=origins(number))
        if what == "no origins":
            batch = replace(batch, origin=None)
        if what == "a gap":
            batch = replace(batch, origin=origins(2 * number))
        if what == "another actor":
            batch = replace(batch, origin=origins(number, torch.arange(B) + B * number))
        batches.append(batch)
        buffer.add(batch)
    sampled = buffer.sample(16, 1)
    assert sampled is not None
    stored = {tuple(x.flatten().tolist()) for batch in batches for x in batch.state[0].unbind(0)}
    assert {tuple(x.flatten().tolist()) for x in sampled.state[0].unbind(0)} <= stored


def test_origins_are_cut_and_joined_with_their_unrolls() -> None:
    agent = make_learner().agent
    one, two = (replace(make_batch(agent), origin=origins(number)) for number in (1, 2))
    halves = split(one, 2)
    assert [half.origin.tolist() for half in halves] == [[[0, 1], [1, 1]], [[2, 1], [3, 1]]]  # type: ignore[union-attr]
    both = join([halves[1], two]).origin
    assert both is not None and both.tolist() == [[2, 1], [3, 1], *([env, 2] for env in range(B))]
    assert join([one, replace(two, origin=None)]).origin is None


def make_mixed(learner: Learner, n: int) -> tuple[Unroll, Unroll, Unroll]:
    """Return a fresh batch of version 9, n unrolls of versions 0 to 2 and both; some are truncated."""
    buffer = ReplayBuffer(SLOTS, learner.agent)
    for number in (0, 1, 2, 9):
        truncations = Truncations(torch.tensor([2]), torch.tensor([1]), torch.randn(1, 5))
        fresh = replace(make_batch(learner.agent), version=number, truncations=truncations)
        buffer.add(fresh)
    replayed = buffer.sample(n, 10)
    assert replayed is not None
    return fresh, replayed, with_replayed(fresh, replayed)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_the_losses_of_fresh_and_replayed_unrolls_are_summed(n: int, seed: int) -> None:
    """And so are gradients, each unroll corrected for the policy that acted in it."""
    learner = make_learner("rdn")
    fresh, replayed, both = make_mixed(learner, n)
    assert torch.equal(both.observation, torch.cat([fresh.observation, replayed.observation], 1))
    assert both.replayed is not None and replayed.replayed is not None
    assert both.replayed.tolist() == [-1] * B + replayed.replayed.tolist()
    parts = [fresh, *(select(replayed, torch.tensor([i])) for i in range(n))]
    losses, grads = [], []
    for part in (both, *parts):
        losses.append(learner.backward(part).metrics["total_loss"])
        grads.append(torch.cat([p.grad.flatten() for p in learner.agent.parameters() if p.grad is not None]))
    assert losses[0] == pytest.approx(sum(losses[1:]), rel=1e-4)
    torch.testing.assert_close(grads[0], torch.stack(grads[1:]).sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("passes", "size"), [(1, None), (2, None), (1, 2), (3, 4)])
def test_only_what_is_fresh_counts(passes: int, size: int | None, seed: int) -> None:
    spec = AgentSpec((5,), A, core="lstm", stem="mlp", normalised=(0, 3))
    learner = Learner(Agent(spec), LearnerConfig(total_steps=10_000, normalise_rewards=True))
    learner.version = 10
    fresh, _, both = make_mixed(learner, B)
    fresh.episodes.return_moments.append(moments(torch.tensor([[1.0], [5.0]])).numpy())
    versions = []
    for part in minibatches(both, passes, size, (1,)):
        partial_update = learner.backward(part)
        assert part.replayed is not None
        acted = [version for version in part.replayed.tolist() if version >= 0]
        versions += acted
        assert partial_update.replayed == (len(acted), sum(learner.version - version for version in acted))
        metrics = learner.step([partial_update])
        if acted:
            assert metrics["replay_age"] == pytest.approx(learner.version - 1 - sum(acted) / len(acted))
        assert metrics["policy_lag"] == learner.version - 1 - 9
    assert both.replayed is not None
    assert sorted(versions) == sorted(passes * both.replayed[B:].tolist())
    assert learner.steps == T * B and learner.reward_divisor == 2.0
    assert partial_update.episodes == fresh.episodes
    assert learner.agent.normaliser is not None
    count, mean, _ = learner.agent.normaliser.statistics
    assert count.eq(T * B).all()
    torch.testing.assert_close(mean, fresh.observation[:-1].flatten(0, 1).double().mean(0))


def test_the_age_is_a_mean_over_the_environments_of_all_processes() -> None:
    learner = make_learner()
    learner.version = 10
    fresh, replayed, both = make_mixed(learner, 3)
    parts = [learner.backward(part) for part in (fresh, both)]
    assert replayed.replayed is not None
    assert learner.step(parts)["replay_age"] == pytest.approx(10 - replayed.replayed.double().mean())
    assert "replay_age" not in learner.update(fresh)


def test_without_any_return_the_fresh_batch_is_the_batch() -> None:
    fresh = make_batch(make_learner().agent)
    assert with_replayed(fresh, None) is fresh
    assert filled(make_learner().agent, 5).sample(0, 9) is None
