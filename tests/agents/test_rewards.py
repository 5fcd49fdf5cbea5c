"""What is learned of a reward, by the core that reads it and by the loss: scaled, then clipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import CountingEnv
from random_batches import A, make_batch

from deltabeast.agents import Actor, Agent, AgentSpec, Learner, LearnerConfig
from deltabeast.agents.accelerate import accelerate
from deltabeast.agents.checkpoint import export_agent, load_agent
from deltabeast.agents.cpu.cache import NO_CACHE, CacheSpec
from deltabeast.agents.losses import actor_critic
from deltabeast.agents.weights import SharedWeights
from deltabeast.envs import make_vector_env

RULES: dict[str, dict[str, float]] = {
    "as it is": {},
    "scaled": {"reward_scale": 3.0},
    "clipped": {"reward_clip": 0.7},
    "both": {"reward_scale": 0.25, "reward_clip": 0.5},
}


def make_agents(core: str, rule: str) -> tuple[Agent, Agent]:
    """Make an agent with a rule, and one with its weights whose core reads rewards as they are."""
    plain = Agent(AgentSpec((5,), A, core=core, stem="mlp", reward_clip=1e30))
    agent = Agent(replace(plain.spec, **{"reward_clip": 0.0, **RULES[rule]}))
    agent.load_state_dict(plain.state_dict())
    return agent, plain


def test_a_reward_is_scaled_then_clipped() -> None:
    spec = AgentSpec((5,), A, "feedforward", "mlp")
    paid = torch.tensor([-1e9, -3.0, 0.0, 1.0, 12.0])
    for rule, learned in (
        ({}, paid.tolist()),
        ({"reward_clip": 2.0}, [-2.0, -2.0, 0.0, 1.0, 2.0]),
        ({"reward_scale": 0.5}, [-5e8, -1.5, 0.0, 0.5, 6.0]),
        ({"reward_scale": 0.5, "reward_clip": 2.0}, [-2.0, -1.5, 0.0, 0.5, 2.0]),
    ):
        assert Agent(replace(spec, **rule)).training_reward(paid).tolist() == learned


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("core", ["feedforward", "rdn"])
def test_core_and_loss_learn_the_same_of_it(core: str, rule: str, seed: int) -> None:
    """The core reads what is learned, and its logarithm where nothing clips it."""
    agent, plain = make_agents(core, rule)
    batch = make_batch(agent)
    scale, clip = agent.spec.reward_scale, agent.spec.reward_clip
    learned = scale * batch.reward if not clip else (scale * batch.reward).clip(-clip, clip)
    read = learned if clip else torch.where(learned > 0, (1 + learned).log(), -(1 - learned).log())
    with torch.no_grad():
        for reward, each in ((batch.reward, agent), (read, plain)):
            output, _ = each.act(batch.observation[0], reward[0], batch.done[0], batch.state)
            batch.behavior_logits[int(each is plain)] = output.policy_logits
        torch.testing.assert_close(*batch.behavior_logits[:2], rtol=1e-4, atol=1e-5)
        output, *_ = plain.unroll(batch.observation, read, batch.done, batch.state)
    config = LearnerConfig(1000)
    loss, _ = Learner(agent, config).loss(batch)
    costs = {name: getattr(config, name) for name in ("discount", "baseline_cost", "entropy_cost")}
    expected, _ = actor_critic(output.policy_logits, output.baseline, batch, learned[1:], **costs)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_actors_that_cache_what_they_compute_read_the_same(rule: str, seed: int) -> None:
    """Those whose whole step is one call of C, where there is a compiler."""
    collected = []
    for spec in (NO_CACHE, CacheSpec(projection=True, core=True)):
        torch.manual_seed(seed)
        agent = Agent(AgentSpec((3,), 4, "lstm", "mlp", **RULES[rule]))
        inference = accelerate(Learner(agent, LearnerConfig(1000)), spec=spec)
        actor = Actor(CountingEnv((3, 4)), agent, SharedWeights(), 7, seed, inference=inference)
        collected.append([actor.collect() for _ in range(2)])
    for plain, cached in zip(*collected, strict=True):
        assert torch.equal(plain.reward, cached.reward) and plain.reward.max() > 1
        torch.testing.assert_close(plain.behavior_logits, cached.behavior_logits, rtol=1e-4, atol=1e-5)


def test_the_first_reward_that_is_clipped_is_noted() -> None:
    """CountingEnv pays up to 150; the note is the same for all who act in a run."""
    notes: dict[float, list[list[str]]] = {}
    for clip in (0.0, 1.0, 100.0):
        agent = Agent(AgentSpec((3,), 4, "feedforward", "mlp", reward_scale=0.5, reward_clip=clip))
        actor = Actor(CountingEnv((3, 4)), agent, SharedWeights(), 5, seed=1)
        notes[clip] = [actor.collect().episodes.notes for _ in range(3)]
    assert notes[0.0] == notes[100.0] == [[], [], []]
    assert notes[1.0][1:] == [[], []]
    (note,) = notes[1.0][0]
    assert note.startswith(
        "rewards beyond ±2 are clipped for training (--reward-clip); logged returns are unclipped"
    )
    agent = Agent(AgentSpec((3,), 4, "feedforward", "mlp", reward_clip=1.0))
    actor = Actor(CountingEnv((3, 4)), agent, SharedWeights(), 5, seed=1, discount=0.9)
    (note,) = actor.collect().episodes.notes
    assert note.startswith("rewards beyond ±1 are clipped in the core's input"), "the loss divides them first"


def test_an_agent_that_is_older_than_the_choice_clips_to_one(tmp_path: Path) -> None:
    agent = Agent(AgentSpec((5,), A, "feedforward", "mlp", reward_scale=0.5, reward_clip=3.0))
    export_agent(tmp_path, 7, agent)
    assert load_agent(tmp_path).spec == agent.spec
    (file,) = tmp_path.glob("checkpoints/*/agent.json")
    fields = json.loads(file.read_text())
    assert (fields.pop("reward_scale"), fields.pop("reward_clip")) == (0.5, 3.0)
    _rewrite(file, json.dumps(fields))
    old = load_agent(tmp_path)
    assert old.training_reward(torch.tensor([0.6, -5.0, 5.0])).tolist() == pytest.approx([0.6, -1.0, 1.0])


def _rewrite(file: Path, text: str) -> None:
    """Change a file of a checkpoint and its checksum."""
    import hashlib

    manifest = file.with_name("manifest.json")
    said = json.loads(manifest.read_text())
    file.write_text(text)
    said["sha256"][file.name] = hashlib.sha256(text.encode()).hexdigest()
    manifest.write_text(json.dumps(said))


class Arms(gym.Env[np.ndarray, int]):
    """Each episode is one choice among arms, each of which pays one of its amounts."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, pays: list[list[float]]) -> None:
        self.pays = pays

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        pay = float(self.np_random.choice(self.pays[action]))
        return np.ones(2, np.float32), pay, True, False, {}


PAYS = {"Both": [[1], [5]], "Lost": [[-5], [-1]], "Chance": [[0.5], [10, -1]]}
for name, pays in PAYS.items():
    gym.register(f"Arms{name}-v0", Arms, kwargs={"pays": pays}, disable_env_checker=True)


@pytest.mark.parametrize("name", PAYS)
def test_the_better_of_two_arms_is_found_though_both_pay_more_than_one(name: str) -> None:
    torch.manual_seed(0)
    env = make_vector_env(env_id=f"Arms{name}-v0", num_envs=8)
    agent = Agent(AgentSpec((2,), 2, "feedforward", "mlp"))
    learner = Learner(agent, LearnerConfig(8 * 10 * 40, learning_rate=3e-3))
    actor = Actor(env, agent, SharedWeights(), 10, seed=1)
    for _ in range(40):
        learner.update(actor.collect())
    assert float(actor.collect().behavior_logits.softmax(-1).mean((0, 1))[1]) > 0.9
