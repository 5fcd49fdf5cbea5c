"""A step of a whole agent in one call of C: the same as in several, down to the last bit."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from test_trunk import KEEPERS, SHAPES, PictureEnv, anew, gradients, play, relative_error

from deltabeast.agents import Actor, Agent, Unroll
from deltabeast.agents.inference import NOTHING, Keep
from deltabeast.agents.known import UNKNOWN, Known
from deltabeast.agents.steps import Steps, prepare
from deltabeast.agents.weights import SharedWeights


def prepared(agent: Agent, unroll: Unroll) -> Steps | None:
    sizes = unroll.done.shape
    known = Known(projection=agent.new_kept_projection(*sizes), core=agent.core.new_kept(*sizes))
    with torch.no_grad():
        return prepare(agent, unroll, known, torch.Generator())


@pytest.mark.parametrize("core", [*KEEPERS, "gated_linear_attention", "momentum_delta_net"])
@pytest.mark.parametrize(("T", "environments"), [(1, 1), (6, 4), (7, 19)])
def test_it_acts_as_an_actor_that_keeps_nothing(core: str, T: int, environments: int, seed: int) -> None:
    """Resets are at the first, the last and every step. Learning from what was kept agrees to rounding."""
    lengths = tuple([3, max(T, 2), 1, 50] * 5)[:environments]
    _, learner = play("mlp", core, T=T, seed=seed)
    actor, other = (
        Actor(PictureEnv(lengths, SHAPES["mlp"]), agent, SharedWeights(), T, seed, keep=keep)
        for agent, keep in (
            (learner.agent, Keep(projection=True, core=True)),
            (copy.deepcopy(learner.agent), NOTHING),
        )
    )
    for _ in range(3):
        unroll, plain = actor.collect(), other.collect()
        assert prepared(learner.agent, unroll) is not None
        assert unroll.known.core.t == unroll.known.projection.t == T + 1 and not any(plain.known)
        for x, y in zip(unroll.tensors(), plain.tensors(), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
        errors = relative_error(gradients(learner, unroll), anew(learner, unroll))
        assert max(errors.values()) < 1e-2, errors
        inputs = unroll.observation, unroll.reward, unroll.done, unroll.state
        (_, known, _), (_, computed, _) = (
            learner.agent.unroll(*inputs, known=each) for each in (unroll.known, UNKNOWN)
        )
        for x, y in zip(known, computed, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_what_c_does_not_know_takes_several_calls(seed: int) -> None:
    actor, learner = play("mlp", seed=seed)
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
    actor, learner = play("mlp", seed=seed)
    before = actor.collect().behavior_logits[:, 0]
    with torch.no_grad():
        learner.agent.policy.bias.add_(7)
    assert (actor.collect().behavior_logits[:, 0] - before).min() > 3
