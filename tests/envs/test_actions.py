"""Which of an environment's actions a number means."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from deltabeast.envs.action_table import MAX_JOINT_ACTIONS, action_table
from deltabeast.envs.checks import check_actions


def test_joint_actions_come_in_c_order() -> None:
    space = spaces.MultiDiscrete([3, 2, 4], start=[0, 5, -1])
    expected = list(itertools.product(range(3), range(5, 7), range(-1, 3)))
    assert [tuple(row) for row in action_table(space)] == expected
    assert all(row in space for row in action_table(space))


def test_bits_are_choices_of_two() -> None:
    space = spaces.MultiBinary(3)
    assert [tuple(row) for row in action_table(space)] == list(itertools.product((0, 1), repeat=3))
    assert all(row in space for row in action_table(space))


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([[2, 3], [1, 2]]), spaces.MultiBinary((2, 2))], ids=str
)
def test_choices_keep_their_shape(space: Any) -> None:
    table = action_table(space)
    assert table.shape[1:] == (2, 2) and len(np.unique(table, axis=0)) == len(table) in (12, 16)
    assert all(row in space for row in table)


def test_single_choices_keep_their_start() -> None:
    assert action_table(spaces.Discrete(3, start=5)).tolist() == [5, 6, 7]
    assert len(action_table(spaces.Discrete(5000))) == 5000  # no joint action: the environment's own number


def test_the_limit() -> None:
    assert len(action_table(spaces.MultiBinary(10))) == MAX_JOINT_ACTIONS == 1024
    for space, number in ((spaces.MultiDiscrete([41, 25]), "1,025"), (spaces.MultiBinary(70), f"{2**70:,}")):
        with pytest.raises(ValueError, match=f"{number} joint actions, more than 1,024; wrap") as error:
            action_table(space)
        assert "\n" not in str(error.value)


def test_what_cannot_be_numbered_is_refused() -> None:
    for space in (spaces.Box(-1, 1, (2,)), spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))):
        with pytest.raises(ValueError, match=r"not supported; choose an environment with a Discrete"):
            action_table(space)


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint8])
def test_actions_that_there_are_pass_and_others_are_named(kind: Any) -> None:
    actions = np.array([0, 3, 2], kind)
    checked = check_actions(actions, 3, 4)
    assert checked.dtype == np.int64 and checked.tolist() == [0, 3, 2]
    for wrong in (4, 127) if kind is np.uint8 else (4, -1, -128):
        actions[1] = wrong
        with pytest.raises(ValueError, match=rf"lie in 0\.\.3, got {min(0, wrong)}\.\.{max(2, wrong)}$"):
            check_actions(actions, 3, 4)


@pytest.mark.parametrize("actions", [[0, 1], [[0, 1, 2]], [0.0, 1.0, 2.0], [True, False, True]])
def test_actions_are_one_integer_for_each_environment(actions: Any) -> None:
    with pytest.raises(ValueError, match=r"^actions must be 3 integers"):
        check_actions(actions, 3, 4)
