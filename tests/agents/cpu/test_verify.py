"""What counts as rounding where C is compared with the eager code in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deltabeast.agents import Agent, AgentSpec, Learner, LearnerConfig
from deltabeast.agents.cpu import verify
from deltabeast.agents.cpu.agent import PARTS, FastAgent
from deltabeast.agents.cpu.ops import fused_ops
from deltabeast.envs import make_vector_env

A = 6


@pytest.fixture(scope="module")
def picture() -> Tensor:
    env = make_vector_env("pong", num_envs=verify.NUM_ENVS, num_threads=1)
    observation = torch.as_tensor(env.reset(seed=3)[0]).clone()
    env.close()
    return observation


def different_parts(picture: Tensor, core: str, seed: int) -> dict[str, str]:
    torch.manual_seed(seed)
    agent = Agent(AgentSpec(tuple(picture.shape[1:]), A, core=core, stem="residual"))
    agent.autocast_dtype = torch.bfloat16
    learner = Learner(agent, LearnerConfig(total_steps=1000))
    unroll = verify.verification_unroll(agent, picture)
    return verify.mismatches(learner, unroll, {*PARTS, "loss"}, FastAgent(agent).cache_spec)


@pytest.mark.parametrize(("core", "number"), [("rdn", 2), ("rdn", 8), ("delta_net", 5), ("lstm", 15)])
def test_rounding_is_no_difference(core: str, number: int, picture: Tensor) -> None:
    """On a Zen 4 some of these agents' gradients are hardly rounded by the eager code and much by C."""
    assert different_parts(picture, core, number) == {}


def test_a_fault_is_one(picture: Tensor, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*given: Any) -> Any:
        ops = fused_ops(*given)

        def loss(*inputs: Any, **costs: Any) -> Any:
            value, metrics = ops.actor_critic(*inputs, **costs)
            return value + 0.1 * (value - value.detach()), metrics  # a tenth more of each gradient

        return ops._replace(actor_critic=loss)

    monkeypatch.setattr(verify, "fused_ops", faulty)
    assert set(different_parts(picture, "rdn", seed)) == {*PARTS, "loss"}


def test_errors_of_gradients_are_at_least_typical_of_their_part() -> None:
    """Norms of 2 and 2.6; a distance of 0.6 in one of two gradients of the stem."""
    ones = torch.ones(4)
    names = (
        "the loss",
        *(f"the gradient of {name}" for name in ("stem.a", "stem.b", "stem.c", "policy.bias")),
    )
    exact = dict.fromkeys(names, ones) | {"the gradient of stem.c": 0 * ones}
    rounded = {**exact, "the gradient of stem.a": ones + 0.3}
    errors = verify._errors(rounded, exact)
    assert errors.pop("the gradient of stem.a") == pytest.approx(0.6)
    assert errors.pop("the gradient of stem.b") == pytest.approx(2 * 0.6 / 2.6 / 2**0.5)
    assert len(errors) == 3 and not any(errors.values())
