"""What agents read: numbers alone, as one image or one vector; what is left out is named."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from deltabeast.envs import make_vector_env
from deltabeast.envs.observations import PlainObservations

CODES = spaces.Box(0, 255, (7, 7, 3), np.uint8)
WORDS = spaces.Text(12)


class Shows(gymnasium.Env[Any, Any]):
    """Shows samples of a space; knows no reward and no end."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


def shown(space: spaces.Space[Any], seed: int) -> tuple[Any, list[Any], np.ndarray]:
    """The vector environment, what each of its environments shows, and what comes of it."""
    gymnasium.register("deltabeast-test/Shows-v0", lambda: Shows(space), disable_env_checker=True)
    try:
        env = make_vector_env(env_id="deltabeast-test/Shows-v0", num_envs=3)
    finally:
        del gymnasium.registry["deltabeast-test/Shows-v0"]
    plain, _ = env.reset(seed=seed)
    raw = []
    for one in env._env.envs:  # type: ignore[attr-defined]
        before = Shows(space)
        before.observation_space.seed(one.unwrapped.np_random_seed)
        raw.append(before.observation_space.sample())
    return env, raw, plain


def batched(space: spaces.Space[Any], samples: list[Any]) -> Any:
    return concatenate(space, samples, create_empty_array(space, len(samples)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-3, 3, (2, 5), np.float64),
        spaces.Box(-3, 3, (), np.float32),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 2, 4], start=[1, -1, 0]),
        spaces.MultiDiscrete([[3, 2], [1, 4]]),
        spaces.MultiBinary((2, 3)),
        spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (3,)), spaces.MultiBinary(2))),
        spaces.Box(-1, 1, (4, 4, 2), np.float32),  # three axes, but no whole numbers
    ],
    ids=str,
)
def test_vectors_are_gymnasiums_own(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    samples = [space.sample() for _ in range(5)]
    plain = PlainObservations(space)
    got = plain(batched(space, samples))
    assert got.dtype == np.float32 and plain.space == spaces.Box(-np.inf, np.inf, got.shape[1:], np.float32)
    np.testing.assert_allclose(got, [spaces.flatten(space, sample) for sample in samples], rtol=1e-6)


def test_nested_parts_come_in_gymnasiums_order_and_text_is_left_out(seed: int) -> None:
    numbers = {"z": spaces.Discrete(3), "a": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1, 1, (2,))))}
    rest = {"m": WORDS, "b": spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))))}
    env, raw, plain = shown(spaces.Dict({**numbers, **rest}), seed)
    kept = spaces.Dict({**numbers, "b": spaces.Tuple((spaces.Discrete(2),))})
    expected = [spaces.flatten(kept, {"z": one["z"], "a": one["a"], "b": one["b"][:1]}) for one in raw]
    np.testing.assert_allclose(plain, expected, rtol=1e-6)
    assert env.left_out == ("b.1 (Sequence)", "m (Text)")


def test_an_image_and_a_direction_become_one_image(seed: int) -> None:
    space = spaces.Dict({"direction": spaces.Discrete(4), "image": CODES, "mission": WORDS})
    env, raw, plain = shown(space, seed)
    assert env.single_observation_space == spaces.Box(0, 255, (7, 7, 7), np.uint8) and plain.dtype == np.uint8
    for one, image in zip(raw, plain, strict=True):
        assert np.array_equal(image[4:], one["image"].transpose(2, 0, 1))
        assert np.array_equal(image[:4, 3, 5], 255 * (np.arange(4) == one["direction"]))
        assert (image[:4] == image[:4, :1, :1]).all()
    assert env.left_out == ("mission (Text)",)


@pytest.mark.parametrize(
    ("dtype", "highest", "factor"), [(bool, 1, 255), (np.uint8, 10, 25), (np.int64, 255, 1)]
)
def test_the_highest_value_of_an_image_is_white(dtype: Any, highest: int, factor: int, seed: int) -> None:
    space = spaces.Box(0, highest, (6, 5, 2), dtype, seed=seed)
    samples = [space.sample() for _ in range(4)]
    got = PlainObservations(space)(batched(space, samples))
    assert got.dtype == np.uint8
    assert np.array_equal(got, np.stack(samples).astype(int).transpose(0, 3, 1, 2) * factor)


@pytest.mark.parametrize(
    ("shape", "plain"),
    [
        ((210, 160, 3), (3, 210, 160)),
        ((3, 210, 160), (3, 210, 160)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 4), (4, 84, 84)),
        ((4, 4, 16), (16, 4, 4)),  # more channels than columns
        ((16, 4, 4), (16, 4, 4)),
        ((10, 10, 10), (10, 10, 10)),
    ],
)
def test_which_axis_holds_the_channels(shape: tuple[int, ...], plain: tuple[int, ...]) -> None:
    assert PlainObservations(spaces.Box(0, 255, shape, np.uint8)).space.shape == plain


def test_an_image_beside_measurements_is_part_of_a_vector(seed: int) -> None:
    space = spaces.Tuple((spaces.Box(-9, 9, (2,)), spaces.Box(0, 10, (4, 4, 3), np.uint8)), seed=seed)
    samples = [space.sample() for _ in range(3)]
    got = PlainObservations(space)(batched(space, samples))
    expected = [np.concatenate([numbers, image.ravel() / 10]) for numbers, image in samples]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_images_of_one_size_are_stacked_and_others_are_not() -> None:
    alike = spaces.Tuple((spaces.Box(0, 255, (8, 6, 3), np.uint8), spaces.Box(0, 1, (8, 6, 1), bool)))
    assert PlainObservations(alike).space.shape == (4, 8, 6)
    others = spaces.Tuple((spaces.Box(0, 255, (8, 6, 3), np.uint8), spaces.Box(0, 1, (6, 8, 1), bool)))
    assert PlainObservations(others).space.shape == (4 * 48,)


def test_nothing_but_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no numbers of a fixed size") as error:
        shown(spaces.Dict({"a": WORDS}), 1)
    assert "\n" not in str(error.value)


def test_what_was_shown_does_not_change(seed: int) -> None:
    space = spaces.Box(0, 255, (5, 5, 3), np.uint8)
    env, _, plain = shown(space, seed)
    before = plain.copy()
    env.step(np.zeros(3, np.int64))
    assert np.array_equal(plain, before)
    assert batch_space(env.single_observation_space, 3).contains(plain)
