"""What an environment raises, or returns that does not fit, is one line that names it."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from deltabeast.envs import EnvironmentFailed, make_vector_env
from deltabeast.envs.gymnasium_env import GymnasiumEnvs
from deltabeast.envs.misfit import misfit_of_observation, misfit_of_result
from deltabeast.envs.rescue import Witness

BOX = spaces.Box(-1, 1, (3,), np.float32)


class Scripted(gymnasium.Env[Any, int]):
    """Episodes of two steps; `trouble` is what happens in the third call of `step`, or of `reset`."""

    action_space = spaces.Discrete(2)

    def __init__(self, where: str, trouble: Any, space: Any = BOX) -> None:
        self.observation_space, self.where, self.trouble = space, where, trouble
        self.calls = {"reset": 0, "step": 0}

    def _called(self, name: str) -> bool:
        self.calls[name] += 1
        return name == self.where and self.calls[name] == 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self._called("reset"):
            return self.trouble()
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> Any:
        if self._called("step"):
            return self.trouble()
        return np.zeros(3, np.float32), 0.0, self.calls["step"] % 2 == 0, False, {}


@contextmanager
def environments(entry_point: Callable[[], gymnasium.Env[Any, int]], count: int = 2) -> Iterator[VectorEnv]:
    gymnasium.register("test/Scripted-v0", entry_point=entry_point, disable_env_checker=True)
    try:
        yield make_vector_env(env_id="test/Scripted-v0", num_envs=count)
    finally:
        del gymnasium.registry["test/Scripted-v0"]


def play(env: VectorEnv) -> None:
    env.reset(seed=1)
    for _ in range(6):
        env.step([0] * env.num_envs)


def fails(where: str, trouble: Any) -> EnvironmentFailed:
    """Play until the trouble, in the second of two environments; return what comes of it."""
    wheres = iter(["", where])
    with environments(lambda: Scripted(next(wheres), trouble)) as env:
        with pytest.raises(EnvironmentFailed) as raised:
            play(env)
        return raised.value


def boom() -> None:
    raise KeyError("the emulator\nbroke")


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_raises_is_named_with_the_call_and_its_own_part_of_the_traceback(
    where: str,
) -> None:
    """The third reset is made within `step`, where an episode ends."""
    failed = fails(where, boom)
    assert str(failed) == f"test/Scripted-v0: {where} failed: KeyError: 'the emulator\\nbroke'"
    assert isinstance(failed.__cause__, KeyError)
    lines = failed.trace.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1].startswith("KeyError: ")
    assert [line.split(" in ")[-1] for line in lines if line.startswith("  File")] == [where, "boom"]
    assert "gymnasium" not in failed.trace


def test_an_environment_cannot_end_the_process() -> None:
    failed = fails("step", lambda: sys.exit(3))
    assert str(failed) == "test/Scripted-v0: step failed: it called sys.exit(3)"
    assert "sys.exit(3)" in failed.trace


def test_who_interrupts_is_not_taken_for_the_environment() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with environments(lambda: Scripted("step", interrupt)) as env, pytest.raises(KeyboardInterrupt):
        play(env)


@pytest.mark.parametrize(
    ("where", "returned", "told"),
    [
        ("step", (np.zeros(2), 0.0, False, False, {}), "an observation of shape (2,), but its space"),
        ("reset", (np.zeros((1, 3)), {}), "an observation of shape (1, 3), but its space"),
        ("step", (np.zeros(3), np.nan, False, False, {}), "reward nan, which is not a finite number"),
        ("step", (np.zeros(3), np.inf, False, False, {}), "reward inf, which is not a finite number"),
        ("step", (np.zeros(3), None, False, False, {}), "reward None, which is not a finite number"),
        ("step", (np.zeros(3), np.ones(2), False, False, {}), "reward array([1., 1.]), which is not a fin"),
        ("step", (np.zeros(3), 0.0, True, {}), "4 values instead of 5: observation, reward, term"),
        ("step", None, "None instead of 5: observation, reward, terminated"),
        ("reset", None, "None instead of 2: observation, info"),
        ("reset", (np.zeros(3), {}, 1), "3 values instead of 2: observation, info"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_its_space(where: str, returned: Any, told: str) -> None:
    failed = fails(where, lambda: returned)
    assert str(failed).startswith(f"test/Scripted-v0: {where} returned {told}")
    assert failed.trace == "", "nothing was raised in its code"


def test_a_long_message_of_an_environment_is_cut() -> None:
    def boast() -> None:
        raise ValueError("x" * 5000)

    assert len(str(fails("step", boast))) < 400


def test_a_failure_travels_between_processes() -> None:
    failed = pickle.loads(pickle.dumps(fails("step", boom)))
    assert "KeyError" in str(failed) and failed.trace.startswith("Traceback")


def test_an_environment_whose_first_observation_does_not_fit_does_not_start() -> None:
    space = spaces.Box(0, 1, (4,), np.float32)
    with (
        pytest.raises(ValueError, match=re.escape("reset returned an observation of shape (3,), but")),
        environments(lambda: Scripted("", None, space)),
    ):
        pass


MAP = spaces.Dict({"place": spaces.Tuple((BOX, spaces.Discrete(4))), "name": spaces.Text(9)})


@pytest.mark.parametrize(
    ("value", "space", "wrong"),
    [
        (np.zeros(3), BOX, None),
        ([0.0, 1.0, 0.5], BOX, None),
        (np.zeros(3, int), BOX, None),
        (np.zeros(3), spaces.Box(0, 255, (3,), np.uint8), None),
        (np.array(["a", "b", "c"]), BOX, "an observation of <U1, but its space is Box("),
        ([[0.0], [1.0, 2.0]], BOX, "an observation that is no array"),
        (3, spaces.Discrete(4), None),
        ([3], spaces.Discrete(4), "an observation of shape (1,), but its space is Discrete(4)"),
        ({"place": (np.zeros(3), 1), "name": "x"}, MAP, None),
        ({"place": (np.zeros(3),), "name": "x"}, MAP, "observation['place'] without 1: "),
        ({"place": (np.zeros(2), 1), "name": "x"}, MAP, "observation['place'][0] of shape (2,), but"),
        ({"name": "x"}, MAP, "an observation without 'place': {'name': 'x'}"),
        (None, MAP, "an observation without"),
    ],
)  # fmt: skip
def test_misfits_of_observations(value: Any, space: Any, wrong: str | None) -> None:
    found = misfit_of_observation(value, space)
    assert found is None if wrong is None else (found or "").startswith(wrong)


def test_a_result_that_is_no_tuple_is_a_misfit() -> None:
    assert misfit_of_result("reset", np.zeros(3), BOX) == "a ndarray instead of 2: observation, info"
    assert misfit_of_result("step", (np.zeros(3), np.float32(1), True, False, {}), BOX) is None


def test_a_vector_environment_that_returns_another_shape_is_refused() -> None:
    """Or half of its columns would be learned from as if they were all."""

    class Narrow(VectorEnv[Any, Any, Any]):
        metadata: ClassVar = {"autoreset_mode": AutoresetMode.SAME_STEP}
        num_envs, single_action_space, single_observation_space = 2, spaces.Discrete(2), BOX
        action_space, observation_space = batch_space(spaces.Discrete(2), 2), batch_space(BOX, 2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros((2, 2), np.float32), {}

    with pytest.raises(
        EnvironmentFailed,
        match=r"^the environment: observations of shape \(2, 2\) where .*\(2, 3\)$",
    ):
        GymnasiumEnvs(Narrow()).reset(seed=1)


def test_a_call_that_did_not_return_returned_nothing_wrong() -> None:
    """What an earlier one returned is not blamed."""

    class Once(gymnasium.Env[Any, Any]):
        observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps > 1:
                raise RuntimeError
            return "no numbers", 0.0, False, False, {}

    witness = Witness(Once())
    witness.step(0)
    assert "step returned" in str(witness.misfit())
    with pytest.raises(RuntimeError):
        witness.step(0)
    assert witness.misfit() is None
