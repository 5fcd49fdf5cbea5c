"""What agents read: numbers alone, as one image or one vector; what is left out is named."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from deltabeast.envs import make_vector_env
from deltabeast.envs.observations import ObservationReader

CODES = spaces.Box(0, 255, (7, 7, 3), np.uint8)
CODES_OF_THAT_SIZE = spaces.Box(0, 10, (8, 6, 3), np.uint8)
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
def test_plain_vectors_are_gymnasiums_own(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    samples = [space.sample() for _ in range(5)]
    plain = ObservationReader(space, "plain")
    got = plain(batched(space, samples))
    assert got.dtype == np.float32 and plain.space.shape == got.shape[1:]
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
    got = ObservationReader(space)(batched(space, samples))
    assert got.dtype == np.uint8
    assert np.array_equal(got, np.stack(samples).astype(int).transpose(0, 3, 1, 2) * factor)


@pytest.mark.parametrize("reading", ["auto", "plain"])
@pytest.mark.parametrize(
    ("shape", "channels"),
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
def test_which_axis_holds_the_channels(
    shape: tuple[int, ...], channels: tuple[int, ...], reading: Any
) -> None:
    assert ObservationReader(spaces.Box(0, 255, shape, np.uint8), reading).space.shape == channels


@pytest.mark.parametrize(("reading", "unit"), [("auto", 9), ("plain", 1)])
def test_an_image_beside_measurements_is_part_of_a_vector(reading: Any, unit: float, seed: int) -> None:
    space = spaces.Tuple((spaces.Box(-9, 9, (2,)), spaces.Box(0, 10, (4, 4, 3), np.uint8)), seed=seed)
    samples = [space.sample() for _ in range(3)]
    got = ObservationReader(space, reading)(batched(space, samples))
    expected = [np.concatenate([numbers / unit, image.ravel() / 10]) for numbers, image in samples]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Box(0, 255, (84, 84), np.uint8), (1, 84, 84)),
        (spaces.Box(0, 1, (84, 84), np.float32), (1, 84, 84)),
        (spaces.Box(0, 255, (210, 160), np.float64), (1, 210, 160)),
        (spaces.Box(0, 1, (40, 32), bool), (1, 40, 32)),
        (spaces.Box(0, 255, (4, 64, 48, 3), np.uint8), (12, 64, 48)),
        (spaces.Box(0, 255, (4, 3, 64, 48), np.uint8), (12, 64, 48)),
        (spaces.Box(0, 1, (4, 84, 84), np.float32), (4, 84, 84)),
        (spaces.Box(0, 255, (84, 84, 3), np.float32), (3, 84, 84)),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), (3, 7, 7)),  # MiniGrid's codes
        (spaces.Box(0, 1, (10, 10, 4), bool), (4, 10, 10)),  # MinAtar's channels
    ],
    ids=str,
)
def test_what_is_a_picture(space: spaces.Box, shape: tuple[int, ...]) -> None:
    read = ObservationReader(space)
    assert read.reading == "picture" and read.space == spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (4, 4), np.float32),  # CartPole's last four
        spaces.Box(0, 255, (31, 84), np.uint8),  # a side of less than 32
        spaces.Box(0, 1, (8, 8, 3), np.float32),
        spaces.Box(0, 255, (4, 8, 8, 3), np.uint8),
        spaces.Box(-1, 1, (84, 84), np.float32),
        spaces.Box(0, 2, (84, 84), np.float32),
        spaces.Box(0, 300, (84, 84), np.int64),
        spaces.Box(0, 255, (128,), np.uint8),  # a machine's memory
        spaces.Discrete(9),
    ],
    ids=str,
)
def test_what_is_a_vector(space: spaces.Space[Any]) -> None:
    read = ObservationReader(space)
    assert read.reading == "vector" and read.space.shape == (spaces.flatdim(space),)


def test_a_guess_is_overridden(seed: int) -> None:
    grey = spaces.Box(0, 255, (84, 84), np.uint8, seed=seed)
    sample = grey.sample()[None]
    np.testing.assert_allclose(
        ObservationReader(grey, "vector")(sample), sample.reshape(1, -1) / 255, rtol=1e-6
    )
    table = spaces.Box(-2, 2, (5, 4), np.float32)
    read = ObservationReader(table, "picture")
    assert read.reading == "picture" and read.space.shape == (1, 5, 4)
    assert read(np.linspace(-2, 2, 20, dtype=np.float32).reshape(1, 5, 4)).ravel().tolist() == [
        round(255 * i / 19) for i in range(20)
    ]
    for unfit in (spaces.Box(-np.inf, np.inf, (4, 4)), spaces.Box(0, 1, (9,)), spaces.Discrete(3)):
        with pytest.raises(ValueError, match="make no picture"):
            ObservationReader(unfit, "picture")


@pytest.mark.parametrize(("highest", "dtype"), [(1, np.float32), (1, np.float64), (255, np.float32)])
def test_floats_are_rounded_to_bytes(highest: int, dtype: Any, seed: int) -> None:
    space = spaces.Box(0, highest, (33, 40), dtype, seed=seed)
    samples = np.stack([space.sample() for _ in range(3)])
    samples[0, 0, :2] = 0, highest
    samples[0, 0, 2] = highest * 1.001  # as a resize leaves it
    got = ObservationReader(space)(samples)
    assert got[0, 0, 0, :3].tolist() == [0, 255, 255]
    assert np.abs(got[:, 0] - samples / highest * 255.0).max() <= 0.5 + 1e-2 + 0.255


def test_a_stack_of_pictures_keeps_each_ones_planes_together(seed: int) -> None:
    space = spaces.Box(0, 255, (4, 33, 40, 3), np.uint8, seed=seed)
    sample = space.sample()
    got = ObservationReader(space)(sample[None])[0]
    for frame in range(4):
        for colour in range(3):
            assert np.array_equal(got[3 * frame + colour], sample[frame, :, :, colour])


def test_bounded_numbers_are_scaled_and_others_are_not() -> None:
    low = np.array([-4.8, -np.inf, 0, 1000, -1e4, -5, 0, -3], np.float32)
    high = np.array([4.8, np.inf, 255, 1010, 1e4, 20, np.inf, -1], np.float32)
    read = ObservationReader(spaces.Box(low, high))
    values = np.array([[-2.4, 7.5, 51, 1005, 300, 10, 9, -2]], np.float32)
    np.testing.assert_allclose(read(values), [[-0.5, 7.5, 0.2, 0.5, 300, 0.5, 9, -0.5]], rtol=1e-6)
    bounded = [True, False, True, True, False, True, False, True]
    assert np.isfinite(read.space.low).tolist() == np.isfinite(read.space.high).tolist() == bounded
    assert (np.abs(read.space.low[bounded]) <= 1).all() and (read.space.high[bounded] <= 1).all()
    still = ObservationReader(spaces.Box(5, 5, (2,), np.int64))  # which cannot change
    assert still(np.array([[5, 5]])).tolist() == [[0, 0]]


def test_a_vector_of_bytes_is_scaled(seed: int) -> None:
    space = spaces.Box(0, 255, (128,), np.uint8, seed=seed)
    values = space.sample()[None]
    np.testing.assert_allclose(ObservationReader(space)(values), values / 255, rtol=1e-6)
    assert np.array_equal(ObservationReader(space, "plain")(values), values)


def test_images_of_one_size_are_stacked_and_others_are_not() -> None:
    alike = spaces.Tuple((spaces.Box(0, 255, (8, 6, 3), np.uint8), spaces.Box(0, 1, (8, 6, 1), bool)))
    assert ObservationReader(alike).space.shape == (4, 8, 6)
    others = spaces.Tuple((spaces.Box(0, 255, (8, 6, 3), np.uint8), spaces.Box(0, 1, (6, 8, 1), bool)))
    assert ObservationReader(others).space.shape == (4 * 48,)


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


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Discrete(4), CODES)),
        spaces.Box(0, 1, (10, 10, 7), bool),
        spaces.Tuple((spaces.Box(0, 1, (8, 6, 2), bool), spaces.MultiBinary(3), CODES_OF_THAT_SIZE)),
        spaces.MultiDiscrete([3, 52]),
    ],
    ids=str,
)
def test_grids_and_choices_are_read_as_version_0_1_read_them(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    seen = batched(space, [space.sample() for _ in range(3)])
    now, then = ObservationReader(space), ObservationReader(space, "plain")
    assert np.array_equal(now(seen), then(seen)) and now(seen).dtype == then(seen).dtype
