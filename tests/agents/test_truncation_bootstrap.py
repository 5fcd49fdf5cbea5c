"""What follows a truncated episode: V of its last observation, against an agent that acts step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from random_batches import CORES, make_learner
from random_batches import make_batch as plain_batch
from torch import Tensor

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig, Unroll, join, split
from deltabeast.agents.losses import actor_critic
from deltabeast.agents.truncation_bootstrap import truncation_bootstrap
from deltabeast.agents.truncations import Truncations
from deltabeast.agents.weights import SharedWeights
from deltabeast.envs import make_vector_env
from deltabeast.envs.gymnasium_env import GymnasiumEnvs


def make_batch(agent: Agent, where: list[tuple[int, int]], columns: int, steps: int = 6) -> Unroll:
    """Make a random batch with episodes truncated at these steps and columns."""
    batch = plain_batch(agent, columns=columns)
    batch = batch.map(lambda dim, x: x[: len(x) - 6 + steps] if dim else x)
    for t, b in where:
        batch.done[t + 1, b] = True
    step, env = torch.tensor(where).unbind(1)
    return replace(batch, truncations=Truncations(step, env, torch.randn(len(where), 5)))


@torch.no_grad()
def acted(agent: Agent, batch: Unroll, t: int, b: int, last: Tensor) -> float:
    """Return 0.9 V of the last observation of an episode as an agent sees it that acts until then.

    Of a last step that was forced, V of what that step saw.
    """
    state = tuple(part[b : b + 1] for part in batch.state)
    for s in range(t + 1):
        observed = batch.observation[s, b : b + 1], batch.reward[s, b : b + 1], batch.done[s, b : b + 1]
        output, state = agent.act(*observed, state)
    if batch.forced[t, b]:
        return float(output.baseline)
    output, _ = agent.act(last[None], batch.reward[t + 1, b : b + 1], torch.tensor([False]), state)
    return 0.9 * float(output.baseline)


CASES = {
    "first step": (6, [(0, 1)]),
    "last step": (6, [(5, 0)]),
    "every step": (6, [(t, 2) for t in range(6)]),
    "two in one column, and one beside them": (6, [(4, 1), (1, 1), (3, 0)]),
    "unrolls of one step": (1, [(0, 0), (0, 2)]),
    "all": (3, [(t, b) for b in range(3) for t in range(3)]),
}


@pytest.mark.parametrize("core", CORES)
def test_values_are_those_of_an_agent_that_acts(core: str, seed: int) -> None:
    agent = make_learner(core).agent
    for name, (steps, where) in CASES.items():
        batch = make_batch(agent, where, columns=3, steps=steps)
        expected = torch.zeros(steps, 3)
        for (t, b), last in zip(where, batch.truncations.observation, strict=True):
            expected[t, b] = acted(agent, batch, t, b, last)
        found = truncation_bootstrap(agent, batch, 0.9)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=f"{core}: {name}")


@pytest.mark.parametrize("bptt", ["full", "per_step"])
def test_the_learner_bootstraps_from_them_unless_told_otherwise(bptt: str, seed: int) -> None:
    for truncation in ("bootstrap", "terminal"):
        learner = make_learner("rdn", bptt=bptt, truncation=truncation)
        batch = make_batch(learner.agent, [(2, 1), (5, 3)], columns=4)
        values = truncation_bootstrap(learner.agent, batch, learner.config.discount)
        bootstraps = truncation == "bootstrap"
        loss = learner.loss(replace(batch, truncation_bootstrap=values) if bootstraps else batch)[0]
        assert learner.backward(batch).metrics["total_loss"] == pytest.approx(loss.item(), rel=1e-5)
        other = learner.loss(batch if bootstraps else replace(batch, truncation_bootstrap=values))[0]
        assert abs(loss - other) > 1e-3


def test_a_truncated_step_teaches_reward_and_discounted_value(seed: int) -> None:
    """By hand, on policy: three steps of reward 1, γ 0.5, V 0; truncated after the second, where V is 6."""
    batch = Unroll(
        observation=torch.zeros(4, 1, 0),
        reward=torch.ones(4, 1),
        done=torch.tensor([[False], [False], [True], [False]]),
        action=torch.zeros(3, 1, dtype=torch.int64),
        behavior_logits=torch.zeros(3, 1, 2),
        forced=torch.zeros(3, 1, dtype=torch.bool),
        truncation_bootstrap=torch.tensor([[0.0], [3.0], [0.0]]),
        state=(),
    )
    # Targets: 1 + 0.5 · 4 = 3, 1 + 0.5 · 6 = 4, and after the reset 1 + 0.5 · 0 = 1.
    for precision in (torch.float32, torch.float64):  # C, PyTorch
        logits = torch.zeros(4, 1, 2, dtype=precision, requires_grad=True)
        values = torch.zeros(4, 1, dtype=precision, requires_grad=True)
        costs = {"discount": 0.5, "baseline_cost": 1.0, "entropy_cost": 0.0}
        loss, metrics = actor_critic(logits, values, batch, batch.reward[1:], **costs)
        loss.backward()
        assert metrics["baseline_loss"] == (9 + 16 + 1) / 2
        torch.testing.assert_close(values.grad, torch.tensor([[-3.0], [-4.0], [-1.0], [0.0]]).to(precision))
        # -log(1/2) times the same advantages
        assert float(metrics["policy_loss"]) == pytest.approx(np.log(2) * (3 + 4 + 1), rel=1e-6)
        torch.testing.assert_close(logits.grad[:3, 0, 0], torch.tensor([-1.5, -2.0, -0.5]).to(precision))


def test_truncations_stay_with_their_columns(seed: int) -> None:
    """Through cuts and joins, of unrolls with and without them."""
    agent = make_learner("rdn").agent
    whole = make_batch(agent, [(2, 1), (0, 5), (5, 4), (1, 1)], columns=6)
    expected = truncation_bootstrap(agent, whole, 0.9)
    parts = split(whole, 2)
    assert [part.truncations is None for part in parts] == [False, True, False]
    assert parts[2].truncations.env.tolist() == [1, 0]
    for part, columns in zip(parts, expected.split(2, 1), strict=True):
        torch.testing.assert_close(truncation_bootstrap(agent, part, 0.9), columns, rtol=1e-4, atol=1e-5)
    for order in ((0, 1, 2), (2, 1, 0)):
        again = join([parts[i] for i in order])
        wanted = torch.cat([expected.split(2, 1)[i] for i in order], 1)
        torch.testing.assert_close(truncation_bootstrap(agent, again, 0.9), wanted, rtol=1e-4, atol=1e-5)
    assert join([parts[1], parts[1]]).truncations is None


class One(gym.Env[np.ndarray, int]):
    """One state, in which each step pays 1. Its age shows only if it `counts`, and it ends at age `ends`.

    All that is seen is seen through one array, into which every step and reset writes.
    """

    observation_space = gym.spaces.Box(-1, 200, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, ends: int = 10**9, counts: bool = False) -> None:
        self.ends, self.counts = ends, counts
        self.seen = np.ones(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = self.seen[1] = 0
        return self.seen, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        self.seen[1] = self.age if self.counts else 0
        return self.seen, 1.0, self.age >= self.ends, False, {}


LIMIT = {"max_episode_steps": 4, "disable_env_checker": True}
gym.register("FinalOne-v0", One, **LIMIT)
gym.register("FinalCounting-v0", One, kwargs={"counts": True}, **LIMIT)
gym.register("FinalBoth-v0", One, kwargs={"ends": 4}, **LIMIT)
SMALL: dict[str, dict[str, Any]] = {
    "feedforward": {},
    "lstm": {"hidden_size": 16},
    "rdn": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "ff_size": 16},
}


def make_actor(env_id: str, core: str = "lstm", num_envs: int = 2) -> Actor:
    env = make_vector_env(env_id=env_id, num_envs=num_envs)
    agent = Agent(AgentSpec((2,), 2, core, "mlp", SMALL[core]))
    return Actor(env, agent, SharedWeights(), 10, seed=1)


def test_an_actor_records_the_last_observation_before_the_reset(seed: int) -> None:
    unroll = make_actor("FinalCounting-v0").collect()
    step, column, observation = unroll.truncations
    assert sorted(zip(step.tolist(), column.tolist(), strict=True)) == [(3, 0), (3, 1), (7, 0), (7, 1)]
    torch.testing.assert_close(200 * observation, torch.tensor([[1.0, 4.0]] * 4))  # scaled by its bounds
    torch.testing.assert_close(200 * unroll.observation[4, 0], torch.tensor([1.0, 0.0]))
    assert unroll.done[4].all()


def test_an_episode_that_terminates_at_its_limit_has_terminated(seed: int) -> None:
    unroll = make_actor("FinalBoth-v0").collect()
    assert unroll.done[4].all() and unroll.truncations is None


def test_an_environment_that_lacks_them_says_so_once(seed: int) -> None:
    class Silent(gym.vector.VectorWrapper):
        def step(self, actions: Any) -> Any:
            return *super().step(actions)[:-1], {}

    actor = make_actor("FinalOne-v0")
    actor.env = GymnasiumEnvs(Silent(actor.env._env), name="Silent-v0")
    actor._reset()
    unrolls = [actor.collect() for _ in range(2)]
    assert [unroll.truncations for unroll in unrolls] == [None, None] and unrolls[1].done[2].all()
    (note,) = unrolls[0].episodes.notes
    assert note.startswith("Silent-v0: its infos lack final_obs") and not unrolls[1].episodes.notes


@pytest.mark.parametrize("core", SMALL)
def test_a_limit_that_is_not_seen_does_not_lower_the_value(core: str) -> None:
    """V is 1 / (1 - γ) = 2 in every state; taken for an end it would be 1 at the last step before it."""
    torch.manual_seed(0)
    assert_value_is_learned(make_actor("FinalOne-v0", core, num_envs=8))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_nor_does_one_in_another_autoreset_mode(mode: AutoresetMode) -> None:
    torch.manual_seed(0)
    actor = make_actor("FinalOne-v0", "feedforward", num_envs=8)
    envs = [lambda: gym.make("FinalOne-v0")] * 8
    actor.env = GymnasiumEnvs(gym.vector.SyncVectorEnv(envs, autoreset_mode=mode))
    actor._reset()
    assert_value_is_learned(actor)


def assert_value_is_learned(actor: Actor) -> None:
    config = LearnerConfig(80 * 80, learning_rate=0.01, discount=0.5, entropy_cost=0.0)
    learner = Learner(actor.agent, config)
    for _ in range(80):
        learner.update(actor.collect())
    unroll = actor.collect()
    assert unroll.done[1:].any()
    with torch.no_grad():
        output, *_ = actor.agent.unroll(unroll.observation, unroll.reward, unroll.done, unroll.state)
    torch.testing.assert_close(output.baseline, torch.full((11, 8), 2.0), rtol=0.0, atol=0.1)
