"""Every kind of environment keeps the contract."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from session_seed import SEED

from deltabeast.envs import PROTOCOLS, make_vector_env
from deltabeast.envs.conformance import check_vector_env


class Clock(gymnasium.Env):
    """Shows the time since the episode began, and pays it; a seed sets the episode's length."""

    def __init__(self, observation="vector", actions=None):
        self.picture = observation == "picture"
        self.observation_space = {
            "vector": spaces.Box(0, np.inf, (1,), np.float64),
            "number": spaces.Discrete(50),
            "picture": spaces.Box(0, 255, (8, 6, 3), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(50), spaces.MultiDiscrete([3, 2]))),
            "sequence": spaces.Sequence(spaces.Discrete(3)),
        }[observation]
        self.action_space = actions or spaces.Discrete(2, start=5)
        self.observation = observation

    def look(self):
        views = {
            "vector": np.array([self.time], np.float64),
            "number": self.time,
            "pair": (self.time, np.array([2, 1])),
        }
        if self.picture:
            image = np.zeros((8, 6, 3), np.uint8)
            image[..., 1] = self.time
            return image
        return views[self.observation]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(2, 20))
        return self.look(), {}

    def step(self, action):
        assert action in self.action_space
        self.time += 1
        return self.look(), float(self.time), self.time >= self.length, False, {}


for view in ("vector", "number", "picture", "pair", "sequence"):
    gymnasium.register(f"deltabeast-test/Clock-{view}-v0", Clock, kwargs={"observation": view})
    gymnasium.register(
        f"deltabeast-test/Short-{view}-v0", Clock, max_episode_steps=5, kwargs={"observation": view}
    )
gymnasium.register(
    "deltabeast-test/Levers-v0",
    Clock,
    kwargs={"actions": spaces.MultiDiscrete([38, 27])},
    disable_env_checker=True,
)
gymnasium.register(
    "deltabeast-test/Chords-v0",
    Clock,
    kwargs={"actions": spaces.MultiDiscrete([2, 3], start=[1, 0])},
    disable_env_checker=True,
)


class Broken(Clock):
    """Shows only in its first episode what it lacks."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def reset(self, *, seed=None, options=None):
        raise self.error


for name, error in (
    ("Broken", FileNotFoundError("no pattern.png\nhere")),
    ("Lacking", ImportError("pip install it")),
):
    gymnasium.register(f"deltabeast-test/{name}-v0", Broken, kwargs={"error": error})


def clock(view, num_envs=3, name="Clock"):
    return make_vector_env(env_id=f"deltabeast-test/{name}-{view}-v0", num_envs=num_envs)


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "paper-code+flicker0.5"])
def test_atari(protocol):
    # A game takes a tenth of a second to begin from a seed: three share two threads once.
    num_envs = 3 if protocol == "paper-code" else 2
    env = make_vector_env("breakout", num_envs=num_envs, protocol=protocol, num_threads=2)
    assert env.protocol == protocol
    assert env.single_observation_space.shape == (4, 84, 84)
    check_vector_env(env, steps=160, seed=SEED)
    env.close()


@pytest.mark.parametrize("protocol", ["paper-code", "ale-standard"])
def test_the_first_six_actions_do_what_they_do_among_all(protocol):
    kinds = {"num_actions": 6}, {}
    six, all_of_them = (
        make_vector_env("amidar", num_envs=2, protocol=protocol, num_threads=1, full_action_set=False, **kind)
        for kind in kinds
    )
    assert six.action_meanings == ("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN")
    assert (six.single_action_space.n, all_of_them.single_action_space.n) == (6, 10)
    for env in (six, all_of_them):
        env.reset(seed=SEED)
    for actions in np.random.default_rng(SEED).integers(0, 6, (60, 2)):
        seen, rewards, *_ = six.step(actions)
        same, same_rewards, *_ = all_of_them.step(actions)
        np.testing.assert_array_equal(seen, same)
        np.testing.assert_array_equal(rewards, same_rewards)
    with pytest.raises(ValueError, match=r"actions must lie in 0\.\.5"):
        six.step([0, 6])
    for env in (six, all_of_them):
        env.close()


@pytest.mark.parametrize("view", ["vector", "number", "picture", "pair"])
def test_what_a_cut_episode_showed_last_is_what_a_longer_one_shows(view):
    """An episode that ends by itself at the limit is not cut."""
    short, long = (clock(view, 40, name) for name in ("Short", "Clock"))
    for env in (short, long):
        env.reset(seed=SEED)
    over = np.zeros(40, bool)
    for step in range(1, 6):
        _, _, terminated, truncated, infos = short.step(np.zeros(40, int))
        longer, _, ended, _, _ = long.step(np.zeros(40, int))
        over |= ended
        if step < 5:
            assert "final_obs" not in infos
    cut = truncated & ~terminated
    assert np.array_equal(infos["_final_obs"], cut) and 0 < cut.sum() < 40 and not (cut & over).any()
    np.testing.assert_array_equal(infos["final_obs"][cut], longer[cut])
    assert infos["final_obs"].dtype == longer.dtype
    for env in (short, long):
        env.close()


OTHERS = [
    "CartPole-v1",
    "FrozenLake-v1",
    "deltabeast-test/Chords-v0",
    "deltabeast-test/Short-pair-v0",
    "popgym:popgym-RepeatPreviousEasy-v0",
    "minigrid:MiniGrid-DoorKey-8x8-v0",
    "popgym:popgym-BattleshipEasy-v0",
]


@pytest.mark.parametrize("env_id", OTHERS)
def test_other_environments(env_id):
    module, _, _ = env_id.rpartition(":")
    if module:
        pytest.importorskip(module)
    env = make_vector_env(env_id=env_id, num_envs=3)
    assert env.protocol is None
    check_vector_env(env, seed=SEED)
    env.close()


@pytest.mark.parametrize("view", ["vector", "number", "picture", "pair"])
def test_views(view):
    env = clock(view)
    check_vector_env(env, steps=60, seed=SEED)
    env.close()


def test_the_observation_after_done_is_the_next_episodes_first_and_the_reward_the_lasts():
    env = clock("vector")
    obs, _ = env.reset(seed=SEED)
    for _ in range(100):
        before = obs
        obs, rewards, terminated, _, infos = env.step(np.zeros(3, np.int64))
        assert np.array_equal(rewards, before[:, 0] + 1), f"seed {SEED}"
        assert np.array_equal(obs[:, 0], np.where(terminated, 0, before[:, 0] + 1)), f"seed {SEED}"
        assert np.array_equal(infos["_game_return"], terminated), f"seed {SEED}"
        n = infos["game_length"][terminated]
        assert np.array_equal(infos["game_return"][terminated], n * (n + 1) / 2), f"seed {SEED}"
    env.close()


def test_pictures_become_channels_first_and_numbers_one_hot():
    env = clock("picture", 2)
    obs, *_ = env.reset(seed=SEED), env.close()
    assert obs[0].shape == (2, 3, 8, 6)
    env = clock("pair", 2)
    obs, _ = env.reset(seed=SEED)
    obs, *_ = env.step(np.ones(2, np.int64))
    env.close()
    assert obs.shape == (2, 55) and obs.dtype == np.float32
    assert np.array_equal(np.flatnonzero(obs[0]), [1, 52, 54])


def rollout(num_threads):
    env = make_vector_env("assault", num_envs=4, protocol="ale-standard", num_threads=num_threads)
    env.reset(seed=SEED)
    rng = np.random.default_rng(SEED)
    steps = [env.step(rng.integers(0, 18, 4)) for _ in range(150)]
    env.close()
    return [np.stack([step[part] for step in steps]) for part in range(4)]


def test_threads_make_no_difference():
    for one, three in zip(rollout(1), rollout(3), strict=True):
        assert np.array_equal(one, three), f"seed {SEED}"


def test_neighbouring_seeds_share_no_game():
    env = make_vector_env("pong", num_envs=4, num_threads=1)
    games = [env.reset(seed=seed)[1]["game_frames"] for seed in (SEED, SEED + 1)]
    env.close()
    assert not np.array_equal(games[0][1:], games[1][:-1]), f"seed {SEED}"


def test_without_a_seed_games_are_new():
    games = [make_vector_env(env_id="CartPole-v1", num_envs=2).reset()[0] for _ in range(2)]
    assert (games[0] != games[1]).any(1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either a game or an env_id"),
        ({"game": "pong", "env_id": "CartPole-v1"}, "either a game or an env_id"),
        ({"game": "gophre"}, "did you mean gopher"),
        ({"game": "pong", "protocol": "paper"}, f"choose {', '.join(PROTOCOLS)}"),
        ({"game": "pong", "num_threads": 0}, "num_threads"),
        ({"game": "pong", "num_envs": 0}, "num_envs"),
        ({"game": "breakout", "num_actions": 6}, "breakout has 4 actions; it cannot be played with 6"),
        ({"env_id": "CartPole-v1", "num_actions": 6}, "num_actions is for games; CartPole-v1 has its own"),
        ({"env_id": "Pendulum-v1"}, "Discrete"),
        ({"env_id": "deltabeast-test/Levers-v0"}, "1,026 joint actions, more than 1,024; wrap"),
        ({"env_id": "deltabeast-test/Clock-sequence-v0"}, "no numbers of a fixed size; wrap"),
        ({"env_id": "deltabeast-test/Broken-v0"}, "reset failed: FileNotFoundError: no pattern.png here"),
        ({"env_id": "deltabeast-test/Lacking-v0"}, "needs a package that is not installed: pip install it"),
        ({"env_id": "broken_module:Thing-v0"}, "importing 'broken_module' .* failed: KeyError: 'key'"),
        ({"env_id": "CartPol-v1"}, "did you mean CartPole-v1"),
        ({"env_id": "nowhere:Thing-v0"}, "install the package"),
        ({"env_id": "Xyzzy-v0"}, "name the module"),
        ({"env_id": "ALE/Pong-v5"}, "give it as the game"),
        ({"env_id": "Pong-v0"}, "give it as the game"),
        ({"env_id": "popgym:popgym-Nothing-v0"}, "unknown environment|install the package"),
        ({"env_id": "gymnasium:CartPol-v1"}, "did you mean gymnasium:CartPole-v1"),
    ],
)
def test_bad_input_gets_one_line_with_the_remedy(arguments, message, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_module.py").write_text("{}['key']")
    with pytest.raises(ValueError, match=message) as error:
        make_vector_env(**{"num_envs": 1, **arguments})
    assert "\n" not in str(error.value)


def test_a_closed_environment_says_so():
    env = make_vector_env("pong", num_envs=1, num_threads=1)
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


def test_an_environment_left_open_does_not_hang_the_exit():
    code = "from deltabeast.envs import make_vector_env as make; make('pong', num_envs=2).reset()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_negative_seeds_are_refused():
    env = make_vector_env("pong", num_envs=1, num_threads=1)
    with pytest.raises(ValueError, match="negative"):
        env.reset(seed=-1)
    env.close()
