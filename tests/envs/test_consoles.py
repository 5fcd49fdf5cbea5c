"""Games stepped from Python are those of ALE's vector environment, and have modes and difficulties."""

from __future__ import annotations

import ale_py
import numpy as np
import pytest
from ale_py import AtariVectorEnv, roms
from gymnasium.vector import AutoresetMode

from deltabeast.envs import make_vector_env
from deltabeast.envs.conformance import check_vector_env
from deltabeast.envs.consoles import Consoles, EmulatorSettings, check_choices
from deltabeast.launch.training.env_options import read_env_options


def rules(game: str, **others: object) -> EmulatorSettings:
    usual = EmulatorSettings(game, 84, 84, True, 4, 4, True, 0.0, 1, False, 240, True)
    return usual._replace(**others)


@pytest.mark.parametrize(
    "played",
    [
        rules("breakout"),
        rules("space_invaders", frameskip=1, maxpool=False, stack_num=2, max_num_frames_per_episode=70),
        rules("seaquest", max_num_frames_per_episode=120, life_loss_info=False, full_action_space=True),
        rules("pong", grayscale=False, img_height=210, img_width=160, stack_num=1),
    ],
    ids=lambda each: each.game,
)
def test_they_are_ales_own_games(played: EmulatorSettings, seed: int) -> None:
    """Without the draws of no-ops and sticky actions, whose generators are others."""
    ale = AtariVectorEnv(
        **played._asdict(), num_envs=3, num_threads=1, autoreset_mode=AutoresetMode.SAME_STEP,
        use_fire_reset=False, reward_clipping=False,
    )  # fmt: skip
    ours = Consoles(played, {}, 3, num_threads=2)
    seeds, rng, ends = np.array([3, 4, 5]), np.random.default_rng(seed), np.zeros(2, int)
    first, again = ale.reset(seed=seeds), ours.reset(seed=seeds)
    assert np.array_equal(first[0], again[0])
    for step in range(90):
        if step == 50:  # one game begins anew
            options = {"reset_mask": np.array([False, True, False])}
            expected, found = (each.reset(seed=np.array([7]), options=options) for each in (ale, ours))
            assert np.array_equal(expected[0], found[0])
        actions = rng.integers(0, ale.single_action_space.n, 3)
        expected, found = ale.step(actions), ours.step(actions)
        assert np.abs(expected[0].astype(int) - found[0]).max() <= 1, f"step {step}"
        for want, have in zip(expected[1:4], found[1:4], strict=True):
            assert np.array_equal(want, have) and want.dtype == have.dtype
        for name in ("lives", "frame_number", "episode_frame_number"):
            assert np.array_equal(expected[4][name], found[4][name]), name
        assert ("final_obs" in found[4]) == (expected[2] | expected[3]).any()
        ends += expected[2].sum(), expected[3].sum()
    assert ends.any(), "some lives or games end"


def test_protocols_are_kept_in_every_mode(seed: int) -> None:
    env = make_vector_env("breakout", num_envs=2, num_threads=2, options={"mode": 4, "difficulty": 1})
    check_vector_env(env, steps=60, seed=seed)
    env.close()


@pytest.mark.parametrize("choices", [{"mode": 12}, {"difficulty": 1}, {"mode": 12, "difficulty": 1}])
def test_a_choice_is_the_emulators(choices: dict[str, int]) -> None:
    """Against one emulator: the same screens, which are not those of the usual game."""
    played = rules("breakout", grayscale=False, img_height=210, img_width=160, stack_num=1)
    seen = []
    for given in (choices, {}):
        ale = ale_py.ALEInterface()
        ale.setInt("random_seed", 3)
        ale.setFloat("repeat_action_probability", 0.0)
        ale.loadROM(roms.get_rom_path("breakout"))
        for name, value in given.items():
            {"mode": ale.setMode, "difficulty": ale.setDifficulty}[name](value)
        ale.reset_game()
        screens = []
        for frame in range(120):
            ale.act(ale.getMinimalActionSet()[1 + frame // 4 % 3])
            screens.append(ale.getScreenRGB())
        seen.append(np.maximum(*screens[-2:]))
    consoles = Consoles(played, choices, 1, num_threads=1)
    consoles.reset(seed=np.array([3]))
    for step in range(30):
        shown, *_ = consoles.step(np.array([1 + step % 3]))
    assert np.array_equal(shown[0, 0], seen[0])
    assert not np.array_equal(shown[0, 0], seen[1])


def test_what_a_game_does_not_have() -> None:
    assert check_choices("breakout", {"mode": "12", "difficulty": 1}) == {"mode": 12, "difficulty": 1}
    assert read_env_options("Breakout", None, {"mode": "4"}) == {"mode": 4}
    for given, said in (
        ({"mode": "3"}, "breakout has no mode 3; it has 0, 4, 8"),
        ({"difficulty": "hard"}, "breakout has no difficulty hard; it has 0, 1"),
        ({"level": "3"}, "breakout has no option 'level'; games have mode and difficulty"),
    ):
        with pytest.raises(ValueError, match=said):
            read_env_options("breakout", None, given)
