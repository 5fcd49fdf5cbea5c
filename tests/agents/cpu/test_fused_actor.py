"""A step of a whole agent in one call of C: the same as in several, down to the last bit."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from test_cached_updates import CACHED, SHAPES, PictureEnv, anew, gradients, plain, play, relative_error

from deltabeast.agents import Actor, Agent, Unroll
from deltabeast.agents.cpu.agent import FastAgent
from deltabeast.agents.cpu.cache import CacheSpec
from deltabeast.agents.cpu.fused_actor import FusedActor, make_fused_actor
from deltabeast.agents.cpu.inference import FastInference
from deltabeast.agents.weights import SharedWeights


def prepared(agent: Agent, unroll: Unroll) -> FusedActor | None:
    fast = FastAgent(agent, cache_spec=CacheSpec(projection=True, core=True))
    with torch.no_grad():
        fast.start_unroll(unroll)
        return make_fused_actor(fast, unroll, torch.Generator())


@pytest.mark.parametrize("core", [*CACHED, "gated_linear_attention", "momentum_delta_net"])
@pytest.mark.parametrize(("T", "environments"), [(1, 1), (6, 4), (7, 19)])
def test_it_acts_as_separate_calls_of_c(core: str, T: int, environments: int, seed: int) -> None:
    """Resets are at the first, the last and every step. Learning from what was cached agrees to rounding."""
    lengths = tuple([3, max(T, 2), 1, 50] * 5)[:environments]
    _, learner, fast = play("mlp", core, T=T, seed=seed)
    agents = fast, FastAgent(copy.deepcopy(learner.agent))
    actor, other = (
        Actor(
            PictureEnv(lengths, SHAPES["mlp"]),
            each.agent,
            SharedWeights(),
            T,
            seed,
            inference=lambda agent, noise, each=each: FastInference(each, noise),
        )
        for each in agents
    )
    for _ in range(3 if T == 1 else 2):  # episodes end in one and go on in the next
        unroll, expected = actor.collect(), other.collect()
        assert prepared(learner.agent, unroll) is not None
        assert fast.cache.is_of(unroll) and fast.cache.core.t == fast.cache.projection.t == T + 1
        for x, y in zip(unroll.tensors(), expected.tensors(), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
        errors = relative_error(gradients(learner, unroll), anew(learner, unroll))
        assert max(errors.values()) < (3e-2 if environments > 1 else 5e-2), errors  # a ReLU may differ
        (found, _), (computed, _) = (
            each.ops.unroll(each.agent, unroll, "full") for each in (learner, plain(learner))
        )
        for x, y in zip(found[1:], computed[1:], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_what_c_does_not_know_takes_several_calls(seed: int) -> None:
    actor, learner, _ = play("mlp", seed=seed)
    agent, unroll = learner.agent, actor.collect()
    assert prepared(agent, unroll) is not None
    images = replace(unroll, observation=unroll.observation[..., None, None])
    for other in (images, replace(unroll, observation=unroll.observation.double())):
        assert prepared(agent, other) is None
    for name in ("stem.fc1", "stem.fc2", "stem.norm", "policy", "baseline"):
        hooked, other = copy.deepcopy(agent), copy.deepcopy(agent)
        hooked.get_submodule(name).register_forward_hook(lambda module, given, result: 2 * result)
        assert prepared(hooked, unroll) is None
        other.set_submodule(name, torch.nn.Sequential(other.get_submodule(name)))
        assert prepared(other, unroll) is None
    strided = copy.deepcopy(agent)
    strided.core.weight_hh_l0.data = strided.core.weight_hh_l0.mT.contiguous().mT
    for other in (strided, play("mlp", "gru", seed=seed)[1].agent):
        assert prepared(other, unroll) is None
    assert prepared(agent, unroll) is not None


def test_a_change_of_the_weights_is_seen(seed: int) -> None:
    actor, learner, _ = play("mlp", seed=seed)
    before = actor.collect().behavior_logits[:, 0]
    with torch.no_grad():
        learner.agent.policy.bias.add_(7)
    assert (actor.collect().behavior_logits[:, 0] - before).min() > 3
