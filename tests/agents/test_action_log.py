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
    for left, right in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        np.testing.assert_array_equal(left, right)
    one.close()
    two.close()


def test_every_game_has_a_seed_of_its_own(seed: int) -> None:
    """So that none repeats another, of its own environment or of others."""
    log = make("CartPole-v1")
    log.reset(seed=seed)
    firsts = []
    for _ in range(150):
        frame, _, terminated, truncated, _ = log.step(np.zeros(NUM_ENVS, int))
        firsts += [tuple(row) for row in frame[terminated | truncated]]
    assert len(set(firsts)) == len(firsts) > 3 * NUM_ENVS
    log.close()


def test_the_log_is_as_long_as_the_longest_game_under_way() -> None:
    log = ActionLog(CountingEnv((3, 4)))
    log.reset(seed=1)
    for step in range(1, 25):
        log.step(np.array([step % 4, 0]))
        state = log.state_dict()
        assert state["ages"].tolist() == [step % 3, step % 4]
        assert len(state["actions"]) == max(step % 3, step % 4)


def test_where_single_environments_cannot_be_reset_all_actions_are_kept(seed: int) -> None:
    env = CountingEnv((3, 4))
    env.metadata = {**env.metadata, "reset_mask": False}
    log, other = ActionLog(env), ActionLog(CountingEnv((3, 4)))
    log.reset(seed=1)
    actions = np.random.default_rng(seed).integers(4, size=(9, 2))
    for chosen in actions:
        frame, *_ = log.step(chosen)
    state = log.state_dict()
    np.testing.assert_array_equal(state["actions"], actions)
    np.testing.assert_array_equal(other.replay(state), frame)


def test_the_state_of_an_earlier_version_is_repeated(seed: int) -> None:
    """It had one seed for all games since the last reset, and no others."""
    plain = make_vector_env(env_id="CartPole-v1", num_envs=NUM_ENVS)
    plain.reset(seed=seed)
    actions = np.random.default_rng(seed).integers(2, size=(60, NUM_ENVS))
    for chosen in actions:
        frame, *_ = plain.step(chosen)
    log = make("CartPole-v1")
    np.testing.assert_array_equal(log.replay({"seed": seed, "actions": torch.from_numpy(actions)}), frame)
    for _ in range(80):
        frame, *_ = log.step(np.ones(NUM_ENVS, int))
    twin = make("CartPole-v1")
    np.testing.assert_array_equal(twin.replay(log.state_dict()), frame)
    for env in (plain, log, twin):
        env.close()


def test_right_after_a_reset_there_is_nothing_to_repeat(seed: int) -> None:
    log = make("CartPole-v1")
    frame, _ = log.reset(seed=seed)
    state = log.state_dict()
    assert state["actions"].shape == (0, NUM_ENVS)
    np.testing.assert_array_equal(make("CartPole-v1").replay(state), frame)


def test_a_reset_begins_a_new_log_of_two_bytes_a_step() -> None:
    log = ActionLog(CountingEnv((30, 40)))
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
