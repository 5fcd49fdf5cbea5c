"""Actions that an environment forbids are not taken, and the loss is that of a policy without them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from counting_env import CountingEnv
from random_batches import CORES

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig, Unroll, WeightStore
from deltabeast.agents.accelerate import inference_for
from deltabeast.agents.inference import EagerInference, InferenceFactory
from deltabeast.agents.losses import actor_critic
from deltabeast.agents.masks import FORBIDDEN
from deltabeast.agents.unroll import join, split
from deltabeast.launch.evaluation.evaluate import evaluate
from deltabeast.launch.evaluation.play import RandomAgent

T = 9
COSTS = {"discount": 0.9, "baseline_cost": 0.4, "entropy_cost": 0.03}


def allowed(shown: np.ndarray) -> np.ndarray:
    """One to four of the four actions, by row, episode and step."""
    code = 1 + (shown.astype(int) @ [7, 5, 3]) % 15
    return (code[..., None] >> np.arange(4)) % 2 == 1


class GuardedEnv(CountingEnv):
    """Refuses what it forbids."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        shown, info = super().reset(seed=seed, options=options)
        self.allowed = allowed(shown)
        return shown, {**info, "action_mask": self.allowed}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        assert self.allowed[np.arange(self.num_envs), actions].all()
        shown, *rest, info = super().step(actions)
        self.allowed = allowed(shown)
        info |= {"life_length": info["game_length"], "_life_length": info["_game_length"]}
        return shown, *rest, {**info, "action_mask": self.allowed}


FAST = inference_for(torch.device("cpu"))


def make_actor(
    core: str = "lstm",
    inference: InferenceFactory = EagerInference,
    deterministic: bool = False,
    seed: int = 1,
) -> Actor:
    agent = Agent(AgentSpec((3,), 4, core=core, stem="mlp"))
    weights = WeightStore(agent, 7)
    return Actor(GuardedEnv((3, 4, 50)), agent, weights, T, seed, deterministic, inference)


@pytest.mark.parametrize("inference", [EagerInference, FAST], ids=["plain", "fast"])
@pytest.mark.parametrize("core", CORES)
def test_only_what_is_allowed_is_chosen_and_it_is_on_policy(
    core: str, inference: InferenceFactory, seed: int
) -> None:
    """An environment that refuses the rest; what the learner computes of the same policy has ratio 1."""
    torch.manual_seed(seed)
    actor = make_actor(core, inference, seed=seed)
    for _ in range(2):
        unroll = actor.collect()
        masks = torch.from_numpy(allowed(unroll.observation[:T].numpy()))
        assert torch.equal(unroll.behavior_logits != FORBIDDEN, masks)
        assert 0.2 < masks.float().mean() < 0.8
        learner = Learner(actor.agent, LearnerConfig(total_steps=10**6))
        metrics = learner.update(unroll)
        assert metrics["log_rho_abs_max"] < 1e-3
        assert 0 < metrics["entropy"] < np.log(4)


def test_allowed_actions_are_drawn_as_the_policy_has_them(seed: int) -> None:
    actor = make_actor(seed=seed)
    actor.agent.policy.weight.data.zero_()
    actor.agent.policy.bias.data = torch.tensor([0.0, 1.0, 2.0, 3.0])
    actor.weights = WeightStore(actor.agent, 8)
    unroll = join([actor.collect() for _ in range(150)])
    masks = torch.from_numpy(allowed(unroll.observation[:T].numpy()))
    for mask in ((True, True, False, False), (True, False, True, True)):
        at = (masks == torch.tensor(mask)).all(-1)
        shares = torch.bincount(unroll.action[at], minlength=4) / at.sum()
        expected = torch.softmax(torch.tensor([0.0, 1.0, 2.0, 3.0]), 0) * torch.tensor(mask)
        torch.testing.assert_close(shares, expected / expected.sum(), atol=0.15, rtol=0)


def random_unroll(A: int, B: int = 5) -> tuple[torch.Tensor, torch.Tensor, Unroll]:
    empty = Unroll.empty(T, torch.zeros(B, 0), A, (), 0)
    batch = replace(
        empty,
        reward=torch.randn(T + 1, B),
        done=torch.rand(T + 1, B) < 0.2,
        action=torch.randint(A, (T, B)),
        behavior_logits=torch.randn(T, B, A),
        forced=torch.rand(T, B) < 0.2,
    )
    return torch.randn(T + 1, B, A), torch.randn(T + 1, B), batch


def test_the_loss_is_that_of_a_policy_without_the_forbidden_actions(seed: int) -> None:
    """Actions 1 and 3 of five are never allowed: as with three actions, in C or not, nothing is learned of
    the others."""
    torch.manual_seed(seed)
    logits, values, batch = random_unroll(3)
    own = torch.tensor([0, 2, 4])
    more = torch.randn(T + 1, 5, 5)
    more[..., own] = logits
    behavior = torch.full((T, 5, 5), FORBIDDEN)
    behavior[..., own] = batch.behavior_logits
    masked = replace(batch, behavior_logits=behavior, action=own[batch.action])

    results = []
    for each, unroll in ((logits, batch), (more, masked)):
        leaves = [x.clone().requires_grad_() for x in (each, values)]
        loss, metrics = actor_critic(*leaves, unroll, unroll.reward[1:], **COSTS)
        loss.backward()
        results.append((metrics, *(x.grad for x in leaves)))
    (metrics, gradient, of_values), (others, wide, same) = results
    for name, value in metrics.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(wide[..., own], gradient, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(same, of_values, rtol=1e-4, atol=1e-5)
    assert not wide[..., [1, 3]].any()


def test_masks_stay_with_their_columns(seed: int) -> None:
    """Learning from all columns is learning from their parts, put together again."""
    torch.manual_seed(seed)
    actor = make_actor(seed=seed)
    unroll = actor.collect()
    again = join(split(unroll, 1))
    assert torch.equal(again.behavior_logits, unroll.behavior_logits)
    learners = [Learner(copy.deepcopy(actor.agent), LearnerConfig(total_steps=10**6)) for _ in range(2)]
    losses = [one.update(each)["total_loss"] for one, each in zip(learners, (unroll, again), strict=True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_deterministic_actor_goes_on_with_its_masks(seed: int) -> None:
    torch.manual_seed(seed)
    actor = make_actor(deterministic=True, seed=seed)
    agent = copy.deepcopy(actor.agent)
    for _ in range(2):
        actor.collect()
    state = actor.state_dict()
    other = Actor(GuardedEnv((3, 4, 50)), agent, WeightStore(agent, 7), T, seed, deterministic=True)
    other.load_state_dict(state)
    for _ in range(2):
        for x, y in zip(actor.collect().tensors(), other.collect().tensors(), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("greedy", [True, False])
def test_evaluation_chooses_among_the_allowed_actions(greedy: bool, seed: int) -> None:
    """Random play does too: its environment refuses others."""
    actor = make_actor(seed=seed)
    for player in (actor.agent, RandomAgent(4)):
        result = evaluate(player, lambda n: GuardedEnv((3,) * n), 4, 3, greedy, seed)
        assert result.game.lengths == [[3] * 4] * 3


class RestartedEnv(GuardedEnv):
    """Begins the next episode where it is reset by itself."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(seed=self.episode + 1 if options else seed, options=options)


@pytest.mark.parametrize("greedy", [True, False])
def test_an_episode_after_an_abandoned_one_begins_with_its_own_mask(greedy: bool, seed: int) -> None:
    """One row ends its episodes, so that not all are reset at once."""
    actor = make_actor(seed=seed)
    for player in (actor.agent, RandomAgent(4)):
        result = evaluate(
            player, lambda n: RestartedEnv((4, *[50] * (n - 1))), 2, 16, greedy, seed, max_episode_steps=5
        )
        assert result.unfinished == 15 * 2 and result.game.lengths == [[4, 4], *[[]] * 15]
