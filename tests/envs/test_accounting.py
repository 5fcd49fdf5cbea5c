"""Lives, games, wrapped scores and forced actions, with a scripted emulator in the place of ALE."""

import numpy as np
import pytest
from session_seed import SEED

from deltabeast.envs import atari, forced_actions, game_names, make_vector_env
from deltabeast.envs.episodes import EpisodeStatistics
from deltabeast.envs.forced_actions import ForcedActions
from deltabeast.envs.frame_stack import repeat_first_frame
from deltabeast.envs.score_wraps import unwrap_scores


class FakeALE:
    """One game a script: each entry (reward, "life" | "over" | "time" | None) is a step."""

    script = ()

    def __init__(self, game, num_envs, **settings):
        self.settings, self.num_envs = settings, num_envs
        self.total = self.frame = 0
        self.resets = [0, 0, 7, 7, 7, 0, 9]  # no-ops that each reset draws
        self.actions = []
        self.steps = iter(self.script)

    def answer(self):
        frames = np.full((self.num_envs, 4, 84, 84), self.total % 251, np.uint8)
        numbers = {"frame_number": self.total, "episode_frame_number": self.frame, "lives": 3}
        return frames, {key: np.full(self.num_envs, value, np.int32) for key, value in numbers.items()}

    def reset(self, seed=None, options=None):
        self.frame = self.resets.pop(0)
        self.total += self.frame
        return self.answer()

    def step(self, actions):
        self.actions.append(int(actions[0]))
        reward, event = next(self.steps)
        self.frame += 4
        self.total += 4
        last, _ = self.answer()
        if event in ("over", "time"):
            self.reset()
        obs, info = self.answer()
        info["final_obs"] = last
        flags = [np.full(self.num_envs, flag) for flag in (event in ("life", "over"), event == "time")]
        return obs, np.full(self.num_envs, reward, np.int32), *flags, info


@pytest.fixture
def play(monkeypatch):
    def run(script, game="ms_pacman", num_envs=1):
        monkeypatch.setattr(FakeALE, "script", script)
        monkeypatch.setattr(atari, "AtariVectorEnv", FakeALE)
        env = atari.AtariGames(game, num_envs)
        inner = env._ale
        env.reset(seed=SEED)
        steps = [env.step(np.full(num_envs, 3)) for _ in script]
        return [(float(step[1][0]), step[4]) for step in steps], inner

    return run


def ended(infos, kind):
    return (infos[f"{kind}_return"][0], infos[f"{kind}_length"][0]) if infos[f"_{kind}_return"][0] else None


def test_lives_and_games(play):
    steps, inner = play([(10, None), (5, "life"), (99, None), (1, None), (2, "over"), (4, None), (8, "time")])
    assert inner.actions == [3, 3, 0, 3, 3, 3, 3]  # ms_pacman has no FIRE: one no-op after the life
    assert [bool(infos["forced"][0]) for _, infos in steps] == [
        False,
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    assert [reward for reward, _ in steps] == [10, 5, 0, 1, 2, 4, 8]
    lives = [ended(infos, "life") for _, infos in steps]
    games = [ended(infos, "game") for _, infos in steps]
    assert lives == [None, (15, 2), None, None, (3, 2), None, (12, 2)]
    assert games == [None, None, None, None, (18, 4), None, (12, 2)]


def test_games_begin_after_one_noop_at_least(play):
    _, inner = play([(0, None), (0, "over"), (0, "over"), (0, "over"), (0, None)])
    assert inner.resets == []  # the zeros were drawn again


def test_fire_is_pressed_after_games_and_lives(play):
    steps, inner = play(
        [(0, None)] * 3 + [(0, "life")] + [(0, None)] * 4 + [(0, "over")] + [(0, None)] * 3, "pong"
    )
    assert inner.actions == [1, 2, 3, 3, 0, 1, 2, 3, 3, 1, 2, 3]
    forced = [bool(infos["forced"][0]) for _, infos in steps]
    assert forced == [action != 3 for action in inner.actions]


def test_a_life_lost_before_the_agent_acts_is_no_episode(play):
    steps, inner = play([(7, "life")] + [(0, None)] * 4 + [(1, "life")], "pong")
    assert [ended(infos, "life") for _, infos in steps] == [None] * 5 + [(1, 3)]
    assert inner.actions == [1, 0, 2, 3, 3, 3]  # the wrappers reset again, then press the second button


def test_a_wrapped_score_is_counted_and_its_return_withheld(play):
    steps, _ = play(
        [(999_000, None), (500 - 10**6, "life"), (0, None), (3, "life"), (0, None), (2, "over"), (1, "over")]
    )
    assert [reward for reward, _ in steps] == [999_000, 500, 0, 3, 0, 2, 1]
    assert [int(infos["score_wraps"][0]) for _, infos in steps] == [0, 1, 0, 0, 0, 0, 0]
    assert [ended(infos, "life") for _, infos in steps] == [None, None, None, (3, 1), None, (2, 1), (1, 1)]
    assert [ended(infos, "game") for _, infos in steps] == [None] * 6 + [(1, 1)]


def test_wraps_are_falls_by_about_a_power_of_ten():
    rewards = np.array([-1e6, -999_000.0, -900_001.0, -99_800.0, -1e9 + 50])
    fixed, wrapped = unwrap_scores(rewards)
    assert wrapped.all()
    assert np.array_equal(fixed, [0, 1000, 99_999, 200, 50])


def test_no_real_reward_is_a_wrap():
    # Skiing's missed gates cost some 10^4 at once; nothing else comes near.
    rewards = np.concatenate(
        [np.arange(-89_999.0, 0, 7), np.arange(0.0, 2e6, 101), [-101_000, -500_000, -850_000]]
    )
    fixed, wrapped = unwrap_scores(rewards)
    assert not wrapped.any()
    assert np.array_equal(fixed, rewards)


def test_statistics_match_a_plain_sum():
    rng = np.random.default_rng(SEED)
    n, steps = 7, 400
    statistics = EpisodeStatistics(n)
    life, game = [[] for _ in range(n)], [[] for _ in range(n)]
    for _ in range(steps):
        rewards = rng.integers(-3, 9, n).astype(np.float64)
        acted = rng.random(n) < 0.9
        rewards[~acted] = 0
        game_over = rng.random(n) < 0.03
        life_over = game_over | (rng.random(n) < 0.1)
        infos = statistics.update(rewards, acted, np.zeros(n, bool), life_over, game_over)
        for i in range(n):
            if acted[i]:
                life[i].append(rewards[i])
                game[i].append(rewards[i])
            for kind, book, over in (("life", life, life_over), ("game", game, game_over)):
                assert infos[f"_{kind}_return"][i] == (over[i] and len(book[i]) > 0), f"seed {SEED}"
                if infos[f"_{kind}_return"][i]:
                    assert (infos[f"{kind}_return"][i], infos[f"{kind}_length"][i]) == (
                        sum(book[i]),
                        len(book[i]),
                    )
                if over[i]:
                    book[i].clear()


def test_a_reset_of_single_environments_forgets_what_they_did_alone():
    one, both = np.array([True, False]), np.ones(2, bool)
    nothing = np.zeros(2, bool)
    statistics = EpisodeStatistics(2)
    statistics.update(np.array([3.0, 4.0]), both, nothing, nothing, nothing)
    assert not statistics.reset(one)["_game_return"].any()
    infos = statistics.update(np.array([1.0, 1.0]), both, nothing, both, both)
    assert infos["game_return"].tolist() == infos["life_return"].tolist() == [1.0, 5.0]
    assert infos["game_length"].tolist() == [1, 2]


def test_buttons_are_pressed_again_where_a_game_was_begun_anew():
    forced = ForcedActions(2, ["NOOP", "FIRE", "RIGHT"], ["NOOP", "FIRE", "RIGHT"])
    for _ in range(2):
        forced.advance(np.zeros(2, bool), np.zeros(2, bool))
    assert not forced.override(np.zeros(2, int))[1].any()
    forced.reset(np.array([False, True]))
    actions, pressed = forced.override(np.zeros(2, int))
    assert pressed.tolist() == [False, True] and actions.tolist() == [0, 1]


@pytest.mark.parametrize("mask", [[True], [1, 0], [False, False]])
def test_a_mask_that_names_no_environments_is_refused(mask):
    for options in ({"game": "pong"}, {"env_id": "CartPole-v1"}):
        env = make_vector_env(**options, num_envs=2)
        env.reset(seed=SEED)
        with pytest.raises(ValueError, match="reset_mask must be 2 booleans"):
            env.reset(options={"reset_mask": np.array(mask)})
        env.close()


def test_the_stack_begins_with_copies_of_the_first_frame():
    frames = np.array([9, 8, 7, 6], np.uint8)
    obs = np.broadcast_to(frames[None, :, None, None], (5, 4, 84, 84)).copy()
    repeat_first_frame(obs, np.array([0, 1, 2, 3, 50]))
    assert obs[:, :, 0, 0].tolist() == [[6, 6, 6, 6], [7, 7, 7, 6], [8, 8, 7, 6], [9, 8, 7, 6], [9, 8, 7, 6]]
    assert (obs == obs[:, :, :1, :1]).all()


def test_buttons_are_those_of_the_games_own_set():
    full = ["NOOP", "FIRE", "UP", "RIGHT", "LEFT"]
    forced = ForcedActions(1, ["NOOP", "FIRE", "RIGHT"], full)
    pressed = []
    for _ in range(3):
        actions, _ = forced.override(np.array([4]))
        pressed.append(full[actions[0]])
        forced.advance(np.zeros(1, bool), np.zeros(1, bool))
    assert pressed == ["FIRE", "RIGHT", "LEFT"]


@pytest.mark.parametrize("table", [forced_actions._FIRE_GAME, forced_actions._OTHER_GAME])
def test_forced_actions_always_end(table):
    """Whatever the steps bring, the agent is free after at most five: a life lost in each of two presses."""
    reached = set(range(6))
    for _ in range(5):
        reached = {int(after) for at in reached - {forced_actions.FREE} for after in table[:, at]}
    assert reached <= {forced_actions.FREE}


def test_there_are_games():
    assert len(game_names()) > 100
