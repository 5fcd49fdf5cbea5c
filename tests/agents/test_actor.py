"""The actor's alignment, proved with an environment that counts and a core that counts with it."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from counting_env import CountingEnv
from torch.utils._python_dispatch import TorchDispatchMode

from deltabeast.agents import Actor, Agent, AgentSpec, WeightStore, make_actor_agent
from deltabeast.agents.accelerate import inference_for
from deltabeast.agents.cuda.inference import GpuInference

T = 5


def make_actor(lengths=(3, 4, 50), core="lstm", seed=1, **kwargs) -> Actor:
    agent = Agent(AgentSpec((3,), 4, core=core, stem="mlp"))
    return Actor(CountingEnv(lengths), make_actor_agent(agent), WeightStore(agent, 7), T, seed, **kwargs)


def test_actions_rewards_and_dones_belong_together(seed: int) -> None:
    actor = make_actor(seed=seed)
    unroll = actor.collect()
    expected = CountingEnv((3, 4, 50))
    observation, _ = expected.reset()
    reward, done = np.zeros(3), np.ones(3, bool)
    for t in range(T):
        np.testing.assert_array_equal(unroll.observation[t], observation)
        np.testing.assert_allclose(unroll.reward[t], reward, rtol=1e-6)
        np.testing.assert_array_equal(unroll.done[t], done)
        observation, reward, done, _, info = expected.step(unroll.action[t].numpy())
        np.testing.assert_array_equal(unroll.forced[t], info["forced"])
    np.testing.assert_array_equal(unroll.observation[T], observation)
    np.testing.assert_allclose(unroll.reward[T], reward, rtol=1e-6)
    np.testing.assert_array_equal(unroll.done[T], done)
    assert unroll.done[:, 0].tolist() == [True, False, False, True, False, False]
    assert unroll.forced[:, 0].tolist() == [True, False, False, True, False]
    assert unroll.version == 7 and unroll.num_steps == 15 and unroll.num_envs == 3


def test_unrolls_name_their_environments_and_count_on(seed: int) -> None:
    actor = make_actor(seed=seed, first_env=6)
    origins = [actor.collect().origin for _ in range(2)]
    assert [origin.tolist() for origin in origins] == [[[6, n], [7, n], [8, n]] for n in (0, 1)]
    other = make_actor(seed=seed)
    other.load_state_dict(actor.state_dict())
    assert other.collect().origin.tolist() == [[0, 2], [1, 2], [2, 2]]


def test_what_a_gpu_observes_is_recorded_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the inference of GPUs, here on a CPU and without graphs."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Mock())
    torch.manual_seed(seed)
    actor = make_actor(seed=seed)
    torch.manual_seed(seed)
    other = make_actor(seed=seed)
    other.inference = GpuInference(other.agent, other._generator, capture=False)
    other._reset()
    for _ in range(2):
        for x, y in zip(actor.collect().tensors(), other.collect().tensors(), strict=True):
            assert torch.equal(x, y)
    assert other.inference.bytes_sent > actor.inference.bytes_sent == 0


def test_unrolls_overlap_by_one_observation_and_no_state_is_lost(seed: int) -> None:
    """Two unrolls replayed as one from the first state give the recorded behaviour logits."""
    actor = make_actor(seed=seed)
    first, second = actor.collect(), actor.collect()
    for name in ("observation", "reward", "done"):
        torch.testing.assert_close(getattr(first, name)[T], getattr(second, name)[0])
    both = [
        torch.cat([getattr(u, name)[:T] for u in (first, second)])
        for name in ("observation", "reward", "done")
    ]
    with torch.no_grad():
        output, *_ = actor.agent.unroll(*both, first.state)
    recorded = torch.cat([first.behavior_logits, second.behavior_logits])
    torch.testing.assert_close(output.policy_logits, recorded, rtol=1e-4, atol=1e-5)
    assert any((part != 0).any() for part in second.state)


def test_finished_episodes_are_reported_once(seed: int) -> None:
    actor = make_actor(seed=seed)
    unrolls = [actor.collect() for _ in range(3)]
    actions = torch.cat([u.action for u in unrolls]).double()
    expected = []
    for env, length in ((0, 3), (1, 4)):
        for episode in range(15 // length):
            part = actions[episode * length : (episode + 1) * length, env]
            expected.append(float(sum(100 * env + 10 * episode + i + a / 10 for i, a in enumerate(part))))
    got = [score for u in unrolls for score in u.episodes.game_returns]
    np.testing.assert_allclose(sorted(got), sorted(expected), rtol=1e-6)
    assert sorted(n for u in unrolls for n in u.episodes.game_lengths) == [3] * 5 + [4] * 3


def test_same_seed_same_actions_other_seed_other_actions(seed: int) -> None:
    torch.manual_seed(0)
    weights = Agent(AgentSpec((3,), 4, core="lstm", stem="mlp"))

    def actions(seed: int) -> list[list[int]]:
        actor = Actor(CountingEnv((3, 4)), make_actor_agent(weights), WeightStore(weights), T, seed)
        return actor.collect().action.tolist()

    assert actions(seed) == actions(seed) != actions(seed + 1)


def test_weights_are_cast_once_an_unroll_and_new_ones_are_seen(seed: int) -> None:
    """As autocast would cast them at each step; what it keeps must not outlive a pull."""
    agent = Agent(AgentSpec((3,), 4, core="lstm", stem="mlp"))
    agent.autocast_dtype = torch.bfloat16
    store = WeightStore(agent)
    fast = inference_for(torch.device("cpu"))
    actor = Actor(CountingEnv((3, 4)), make_actor_agent(agent), store, T, seed, inference=fast)
    casts = Casts()
    for version in range(3):
        with casts:
            unroll = actor.collect()
        # Those of the stem: weight and bias of two layers.
        assert casts.count == 4 * (version + 1)
        with torch.no_grad():
            seen = unroll.observation[:T], unroll.reward[:T], unroll.done[:T]
            output, *_ = agent.unroll(*seen, unroll.state)
        torch.testing.assert_close(unroll.behavior_logits, output.policy_logits, rtol=1e-3, atol=1e-4)
        for parameter in agent.parameters():
            parameter.data.mul_(1.5)
        store.publish(agent, version)


class Casts(TorchDispatchMode):
    """Counts the parameters that are cast to bfloat16."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._to_copy.default and args[0].requires_grad and args[0].is_leaf:
            self.count += 1
        return function(*args, **(kwargs or {}))


def test_published_weights_act_from_the_next_unroll(seed: int) -> None:
    agent = Agent(AgentSpec((3,), 4, core="feedforward", stem="mlp"))
    store = WeightStore(agent)
    actor = Actor(CountingEnv((3, 4)), make_actor_agent(agent), store, T, seed)
    assert actor.collect().version == 0
    with torch.no_grad():
        agent.policy.bias[2] = 1e6
    assert actor.collect().version == 0
    store.publish(agent, 1)
    unroll = actor.collect()
    assert unroll.version == 1 and (unroll.action == 2).all()


def test_no_game_is_cut_for_determinism(seed: int) -> None:
    """A game of 1,700 steps, in unrolls of 5, ends as it does without; short ones beside it too."""
    ended = []
    for deterministic in (False, True):
        actor = make_actor((7, 1700), core="feedforward", seed=seed, deterministic=deterministic)
        episodes = [actor.collect().episodes for _ in range(1700 // T)]
        ended.append(sorted(length for one in episodes for length in one.game_lengths))
    assert ended[0] == ended[1] == [7] * (1700 // 7) + [1700]


def test_deterministic_state_brings_an_actor_back(seed: int) -> None:
    """Across games that began since, and with a recurrent state."""
    torch.manual_seed(seed)
    one = make_actor(seed=seed, deterministic=True)
    for _ in range(11):
        one.collect()
    saved = one.state_dict()
    assert saved["env"]["ages"].tolist() == [1, 3, 5], "steps of the games under way, of 3, 4 and 50"
    assert len(saved["env"]["actions"]) == 5, "nothing older is needed"
    expected = [one.collect() for _ in range(3)]
    torch.manual_seed(seed)
    two = make_actor(seed=seed, deterministic=True)
    two.load_state_dict(saved)
    for unroll in expected:
        again = two.collect()
        for name in ("observation", "reward", "done", "action", "behavior_logits"):
            assert torch.equal(getattr(unroll, name), getattr(again, name)), name
        assert all(torch.equal(a, b) for a, b in zip(unroll.state, again.state, strict=True))
