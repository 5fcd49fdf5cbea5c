"""What an environment shows beyond its own space is refused or told, never changed in silence."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from deltabeast.envs import EnvironmentFailed, make_vector_env
from deltabeast.envs.declared import BadObservation
from deltabeast.envs.gymnasium_env import GymnasiumEnvs
from deltabeast.envs.observations import ObservationReader

CODES = spaces.Box(0, 1, (7, 7, 3), np.uint8)


class Shows(gymnasium.Env[Any, Any]):
    """Shows what its space allows, and from the third step on something else."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any], shown: Any) -> None:
        self.observation_space, self.shown = space, shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        shown = self.shown if self.count > 2 else self.observation_space.sample()
        return shown, 0.0, False, False, {}


def showing(space: spaces.Space[Any], shown: Any) -> GymnasiumEnvs:
    gymnasium.register("deltabeast-test/Beyond-v0", lambda: Shows(space, shown), disable_env_checker=True)
    try:
        env = make_vector_env(env_id="deltabeast-test/Beyond-v0", num_envs=2)
    finally:
        del gymnasium.registry["deltabeast-test/Beyond-v0"]
    assert isinstance(env, GymnasiumEnvs)
    return env


def play(env: GymnasiumEnvs, steps: int) -> tuple[np.ndarray, list[str]]:
    """The last observation, and what was noted on the way."""
    env.reset(seed=1)
    notes: list[str] = []
    for _ in range(steps):
        seen, _, _, _, infos = env.step(np.zeros(2, np.int64))
        notes += infos.get("notes", [])
    return seen, notes


FULL = np.full((7, 7, 3), 200)


@pytest.mark.parametrize(
    ("space", "shown", "value"),
    [
        (CODES, FULL.astype(np.uint8), "200"),
        (spaces.Box(0, 255, (7, 7, 3), np.int64), FULL + 100, "300"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), (FULL + 100).astype(np.uint16), "300"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), FULL / 255, "0.78"),
        (spaces.Box(0, 255, (3,), np.uint8), [1, 2, 256], "256"),
        (spaces.Box(0, 1, (32, 32), np.float32), np.full((32, 32), 200, np.float32), "200.0"),
        (spaces.Discrete(5), 7, "7"),
        (spaces.Discrete(5, start=-2), 3, "3"),
        (spaces.MultiDiscrete([3, 2]), np.array([1, 2]), "2"),
        (spaces.MultiBinary(3), np.array([0, 1, 2], np.int8), "2"),
        (spaces.Box(-1, 1, (3,)), np.array([0, np.nan, 0], np.float32), "nan"),
        (spaces.Box(-np.inf, np.inf, (3,)), np.array([0, 0, -np.inf], np.float32), "-inf"),
        (spaces.Box(-np.inf, np.inf, (3,), np.float64), np.array([0, 1e300, 0]), "1e+300"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,)))), (2, np.zeros(2, np.float32)), "2"),
    ],
    ids=str,
)
def test_what_a_cast_or_an_encoding_would_change_is_refused(
    space: spaces.Space[Any], shown: Any, value: str
) -> None:
    env = showing(space, shown)
    play(env, 2)
    part = space[0] if isinstance(space, spaces.Tuple) else space
    with pytest.raises(EnvironmentFailed) as refused:
        play(env, 3)
    line = str(refused.value)
    assert line.startswith(f"deltabeast-test/Beyond-v0: an observation holds {value}")
    assert str(part) in line and "correct the environment" in line and "\n" not in line


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_a_finite_number_outside_its_bounds_goes_in_as_it_is_and_is_noted_once(dtype: Any) -> None:
    space = spaces.Box(-2, 4, (3,), dtype)
    seen, notes = play(showing(space, np.array([1, 6, -3], dtype)), 7)
    assert seen.tolist() == [[0.25, 1.5, -0.75]] * 2
    assert notes == [
        f"deltabeast-test/Beyond-v0: an observation holds {dtype(6).item()}, outside {space}; "
        "it is read as it is"
    ]


def test_numbers_that_are_not_finite_are_refused_after_a_note_too() -> None:
    read = ObservationReader(spaces.Box(-1, 1, (2,)))
    assert read(np.array([[0, 1.5]], np.float32)).tolist() == [[0, 1.5]] and len(read.notes) == 1
    with pytest.raises(BadObservation, match="holds nan"):
        read(np.array([[0, np.nan]], np.float32))


def test_whole_numbers_of_another_type_are_taken() -> None:
    """Gymnasium's own vector environments refuse these."""
    seen, notes = play(showing(spaces.Box(0, 255, (3,), np.uint8), [0.0, 51.0, 255.0]), 3)
    np.testing.assert_allclose(seen, [[0, 0.2, 1]] * 2, rtol=1e-6)
    assert not notes


def test_an_array_of_another_type_than_declared_is_looked_at() -> None:
    """As vector environments of one's own may hand over."""
    read = ObservationReader(spaces.Box(0, 255, (7, 7, 3), np.uint8))
    assert read(FULL[None]).max() == 200
    with pytest.raises(BadObservation, match="holds 300"):
        read(FULL[None] + 100)
