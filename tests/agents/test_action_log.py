"""Environments brought back by their seed and their actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from counting_env import CountingEnv

from deltabeast.agents.action_log import ActionLog
from deltabeast.envs import make_vector_env

NUM_ENVS = 3


def make(kind: str) -> ActionLog:
    if kind == "pong":
        return ActionLog(make_vector_env("pong", num_envs=NUM_ENVS, protocol="ale-standard"))
    return ActionLog(make_vector_env(env_id=kind, num_envs=NUM_ENVS))


@pytest.mark.parametrize(("kind", "steps"), [("CartPole-v1", 120), ("pong", 40)])
def test_a_replayed_environment_goes_on_alike(kind: str, steps: int, tmp_path: Path, seed: int) -> None:
    """Across episodes, and through a file; Pong with its sticky actions and random no-ops."""
    rng = np.random.default_rng(seed)
    one = make(kind)
    one.reset(seed=seed)
    choices = rng.integers(one.single_action_space.n, size=(2 * steps, NUM_ENVS))  # type: ignore[attr-defined]
    for actions in choices[:steps]:
        frame, *_ = one.step(actions)
    torch.save(one.state_dict(), tmp_path / "state.pt")

    two = make(kind)
    two.reset(seed=seed + 1)
    two.step(choices[0])
    np.testing.assert_array_equal(two.replay(torch.load(tmp_path / "state.pt", weights_only=True)), frame)
    for actions in choices[steps:]:
        for left, right in zip(one.step(actions)[:4], two.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(left, right)
    again = two.state_dict()
    assert again["seed"] == seed
    np.testing.assert_array_equal(again["actions"].numpy(), choices)
    one.close()
    two.close()


def test_right_after_a_reset_there_is_nothing_to_repeat(seed: int) -> None:
    log = make("CartPole-v1")
    frame, _ = log.reset(seed=seed)
    state = log.state_dict()
    assert state["actions"].shape == (0, NUM_ENVS)
    np.testing.assert_array_equal(make("CartPole-v1").replay(state), frame)


def test_a_reset_begins_a_new_log_of_two_bytes_a_step() -> None:
    log = ActionLog(CountingEnv((3, 4)))
    log.reset(seed=1)
    for _ in range(5):
        log.step(np.array([1, 3]))
    log.reset(seed=2)
    log.step(np.array([2, 0]))
    state = log.state_dict()
    assert state["seed"] == 2 and state["actions"].tolist() == [[2, 0]]
    assert state["actions"].dtype == torch.int16


def test_the_log_keeps_its_own_copy_of_the_actions() -> None:
    log = ActionLog(CountingEnv((3, 4)))
    log.reset(seed=1)
    actions = np.array([1, 3], np.int16)  # an actor may reuse its buffer
    log.step(actions)
    actions[:] = 0
    assert log.state_dict()["actions"].tolist() == [[1, 3]]


@pytest.mark.parametrize("seed", [None, [1, 2]])
def test_a_reset_without_one_seed_is_refused(seed: object) -> None:
    with pytest.raises(ValueError, match="must be reset with an integer seed"):
        ActionLog(CountingEnv((3, 4))).reset(seed=seed)
