"""The vector environment plays frame by frame what a plain transcription of the protocol plays."""

import numpy as np
import pytest
from session_seed import SEED

from deltabeast.envs import find_protocol, make_vector_env, varied
from deltabeast.envs.checks import environment_seeds

from .reference_atari import ReferenceGame, frames_before_noops

# Without lives (pong), without FIRE (ms_pacman, kung_fu_master), with a counter of lives that starts late
# (amidar), with lives left at zero (qbert), with few actions (breakout), with all eighteen (alien), and one
# that the emulator starts by buttons of its own (berzerk).
GAMES = [
    "pong",
    "ms_pacman",
    "kung_fu_master",
    "space_invaders",
    "amidar",
    "breakout",
    "qbert",
    "gopher",
    "demon_attack",
    "zaxxon",
    "alien",
    "up_n_down",
    "assault",
    "seaquest",
    "berzerk",
]


class Redraws:
    """Counts how often a game was reset once more because ALE had drawn no no-op for it.

    It does so for 1 game in 31. Where a game starts may depend on how often the emulator was reset (Assault),
    so the transcription has to do the same.
    """

    def __init__(self, env):
        self.count = 0
        self._reset = env._ale.reset
        env._ale.reset = self._counted

    def _counted(self, *, options=None, **kwargs):
        self.count += options is not None
        return self._reset(options=options, **kwargs)

    def take(self):
        count, self.count = self.count, 0
        return count


def assert_same_frames(ours, theirs, where):
    """Equal, but for the rounding of the resize, which OpenCV does in single precision."""
    difference = np.abs(ours.astype(np.int16) - theirs)
    assert difference.max() <= 1 and (difference > 0).mean() < 0.1, f"frames differ at {where}"


def is_black(obs):
    return not obs[0, -1].any()


def follow(game, protocol, steps, seed, most=4, **settings):
    """Plays so many steps on both sides with the same actions, and on until an episode ends, up to `most`
    times as many; returns how many have ended."""
    env = make_vector_env(game, num_envs=1, protocol=protocol, num_threads=1)
    reference = ReferenceGame(game, seed=int(environment_seeds(seed, 1)[0]), **settings)
    rng = np.random.default_rng(seed)
    redraws, before_noops = Redraws(env), frames_before_noops(game)
    obs, infos = env.reset(seed=seed)
    reference.noops.append([0] * redraws.take() + [int(infos["game_frames"][0]) - before_noops])
    ends = 0
    life, expected, fresh = [], None, True  # fresh: the reference's reset is still to come
    for step in range(most * steps):
        if step >= steps and ends:
            break
        where = f"step {step} of {game}, seed {seed}"
        action = rng.integers(env.single_action_space.n)
        before = infos["game_frames"][0]
        new_obs, reward, terminated, truncated, infos = env.step(np.array([action]))
        forced, done = bool(infos["forced"][0]), bool(terminated[0] | truncated[0])
        if fresh and not forced:
            expected, fresh = reference.reset(is_black(obs)), False
            assert not reference.noops
            assert_same_frames(obs[0], expected, where)
        if infos["game_frames"][0] < before:
            noops = int(infos["game_frames"][0]) - before_noops
            reference.noops.append([0] * redraws.take() + [noops])
        obs = new_obs
        if forced:
            continue
        # What is seen after the end is the next episode's.
        expected, expected_reward, expected_done = reference.step(action, not done and is_black(obs))
        life.append(expected_reward)
        assert (reward[0], done) == (expected_reward, expected_done), where
        assert infos["_life_return"][0] == done, where
        if done:
            assert infos["_game_return"][0] == reference.game_really_over, where
            assert infos["life_return"][0] == sum(life), where
            assert infos["life_length"][0] == len(life), where
            life, fresh = [], True
            ends += 1
        else:
            assert infos["lives"][0] == reference.lives, where
            assert_same_frames(obs[0], expected, where)
    env.close()
    return ends


@pytest.mark.parametrize("game", GAMES)
def test_paper_code(game):
    assert follow(game, "paper-code", 400, SEED, most=250) > 0, f"{game} with seed {SEED} ended no episode"


@pytest.mark.parametrize("game", ["pong", "breakout", "ms_pacman", "assault"])
def test_ale_standard_with_sticky_actions(game):
    rules = {"life_ends_episode": False, "press_fire": False, "repeat_first": False}
    follow(game, "ale-standard", 400, SEED, full=True, sticky=0.25, **rules)


@pytest.mark.parametrize("game", ["space_invaders", "breakout"])
def test_paper_text(game):
    rules = {"life_ends_episode": False, "press_fire": False}
    follow(game, "paper-text", 700, SEED, skip=1, sticky=0.25, **rules)


@pytest.mark.parametrize("stack", [1, 2, 3])
def test_fewer_screens_at_once(stack):
    assert follow("breakout", f"paper-code+stack{stack}", 200, SEED, most=250, stack=stack) > 0


@pytest.mark.parametrize(("name", "stack"), [("+flicker0.5", 4), ("+stack1+flicker0.5", 1)])
def test_black_screens_stay_black_in_the_stack(name, stack):
    follow("breakout", f"paper-code{name}", 200, SEED, most=250, stack=stack)
    rules = {"life_ends_episode": False, "press_fire": False, "repeat_first": False}
    follow("pong", f"ale-standard{name}", 200, SEED, full=True, sticky=0.25, stack=stack, **rules)


def blanks(env, seed, steps=300):
    obs = [env.reset(seed=environment_seeds(seed, 3)[: env.num_envs])[0].copy()]
    obs += [env.step(np.zeros(env.num_envs, int))[0].copy() for _ in range(steps)]
    return ~np.stack(obs)[:, :, -1].any((-2, -1))


def test_screens_are_black_by_chance_and_by_seed():
    three, two, plain = (
        make_vector_env("pong", num_envs=num_envs, protocol=f"paper-code{flicker}", num_threads=1)
        for num_envs, flicker in ((3, "+flicker0.3"), (2, "+flicker0.3"), (1, ""))
    )
    first = blanks(three, SEED)
    assert abs(first.mean() - 0.3) < 0.1, f"seed {SEED}"
    assert np.array_equal(first[:50], blanks(three, SEED, 49))
    assert not np.array_equal(first[:50], blanks(three, SEED + 1, 49))
    assert not np.array_equal(first[:, 0], first[:, 1])
    assert np.array_equal(first[:50, :2], blanks(two, SEED, 49))
    assert not blanks(plain, SEED).any()
    for env in (three, two, plain):
        env.close()


def played(game, view, seed, steps=200, games=2):
    """Newest screens `[steps, games, 84, 84]` with actions that depend on SEED alone."""
    return stacks(game, view, seed, steps, games)[:, :, -1]


def stacks(game, view, seed, steps=200, games=2):
    env = make_vector_env(game, num_envs=games, protocol=f"paper-code{view}", num_threads=1)
    env.reset(seed=environment_seeds(seed, 2)[:games])
    draw = np.random.default_rng(SEED)
    actions = draw.integers(env.single_action_space.n, size=(steps, 2))[:, :games]
    shown = np.stack([env.step(action)[0].copy() for action in actions])
    env.close()
    return shown


# The ball is in none of the areas while it is at a paddle or among the bricks, or before it is served.
OPEN = {"pong": (slice(14, 77), slice(11, 73)), "breakout": (slice(38, 75), slice(5, 79))}


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_the_ball_blinks_and_nothing_else(game):
    plain, blinking = played(game, "", SEED), played(game, "+blink0.3", SEED)
    hidden = plain != blinking
    empty = np.median(plain, (0, 1))
    gone = np.broadcast_to(empty, plain.shape)[hidden]
    assert np.array_equal(blinking[hidden], gone) and (plain[hidden] > gone).all()
    # Of two frames' maximum, each with a ball of 2 by 4 pixels of 160 by 210.
    assert 4 <= hidden.sum((-2, -1)).max() <= 2 * 3 * 4
    there = (plain != empty)[:, :, *OPEN[game]].any((-2, -1))
    assert there.sum() > 50
    assert abs(hidden[:, :, *OPEN[game]].any((-2, -1))[there].mean() - 0.3) < 0.2, f"seed {SEED}"


def test_whether_the_ball_is_seen_depends_on_each_game_s_seed():
    screens = {
        seed: played("pong", "+blink0.5", seed, 60) != played("pong", "", seed, 60)
        for seed in (SEED, SEED + 1)
    }
    hidden = screens[SEED].any((-2, -1))
    assert np.array_equal(played("pong", "+blink0.5", SEED, 60), played("pong", "+blink0.5", SEED, 60))
    assert not np.array_equal(hidden, screens[SEED + 1].any((-2, -1)))
    assert not np.array_equal(hidden[:, 0], hidden[:, 1])
    alone = played("pong", "+blink0.5", SEED, 60, games=1)
    assert np.array_equal(alone[:, 0], played("pong", "+blink0.5", SEED, 60)[:, 0])


def test_a_hidden_ball_stays_hidden_in_the_stack():
    plain, blinking = stacks("pong", "", SEED), stacks("pong", "+blink0.5", SEED)
    hidden = (plain != blinking).any((-2, -1))  # [steps, games, 4]
    assert hidden.any() and not hidden.all()
    # Pong's episodes are longer than this: each screen is the one after it a step before.
    for age in (1, 2, 3):
        assert np.array_equal(hidden[age:, :, -1 - age], hidden[:-age, :, -1])


def test_a_black_screen_says_nothing_of_the_ball():
    plain, both = played("pong", "", SEED), played("pong", "+flicker0.5+blink0.5", SEED)
    shown = both.any((-2, -1))
    hidden = (plain != both).any((-2, -1))[shown]
    assert 0.3 < shown.mean() < 0.7 and 0.1 < hidden.mean() < 0.7


def test_a_ball_that_nearly_always_blinks_is_seen_at_paddles_alone():
    """In columns 8 to 10 and 73 to 75; above the court are the points."""
    shown, plain = played("pong", "+blink0.99999", SEED), played("pong", "", SEED)
    paddles = [8, 9, 10, 73, 74, 75]
    assert np.array_equal(shown[..., paddles], plain[..., paddles])
    empty = np.median(shown, (0, 1))
    assert set(np.nonzero((shown != empty).any((0, 1))[13:].any(0))[0]) <= set(paddles)


def test_other_games_have_no_ball_to_hide():
    with pytest.raises(ValueError, match=r"^ms_pacman: only the ball of breakout and pong can blink"):
        make_vector_env("ms_pacman", num_envs=1, protocol="paper-code+blink0.5")


def test_names_of_what_is_seen():
    assert varied("paper-code") == "paper-code" and varied("paper-code", 4, 0.0) == "paper-code"
    name = varied("ale-standard", 1, 0.5)
    assert name == "ale-standard+stack1+flicker0.5" and varied(name) == name
    assert (
        varied(name, frame_stack=4) == "ale-standard+flicker0.5"
        and varied(name, flicker=0) == "ale-standard+stack1"
    )
    both = varied(name, blink=0.25)
    assert both == f"{name}+blink0.25" and find_protocol(both).blink == 0.25 and varied(both, blink=0) == name
    assert varied("paper-code", blink=0.5) == "paper-code+blink0.5"
    rules = find_protocol(name)
    assert (rules.frame_stack, rules.flicker, rules.sticky_probability) == (1, 0.5, 0.25)
    for wrong in (
        "none",
        "paper-code+stack",
        "paper-code+flicker",
        "paper-code+flicker1.2.3",
        "paper-code+flicker0.5+stack1",
        "paper-code+blink0.5+flicker0.5",
        "none+stack1",
    ):
        with pytest.raises(ValueError, match="unknown protocol"):
            find_protocol(wrong)
    assert find_protocol(varied("paper-code", flicker=5e-5)).flicker == 5e-5
    for wrong in ("paper-code+stack0", "paper-code+stack9", "paper-code+flicker7", "paper-code+blink1"):
        with pytest.raises(ValueError, match=r"1 to 4 screens|from 0 to less than 1"):
            find_protocol(wrong)
    for options in (
        {"frame_stack": 0},
        {"frame_stack": 5},
        {"flicker": 1.0},
        {"flicker": -0.1},
        {"blink": 1.0},
    ):
        with pytest.raises(ValueError, match=r"1 to 4 screens|from 0 to less than 1"):
            varied("paper-code", **options)


def noop_counts(game, resets, mode=None):
    """How many starts of 6 games, reset so many times, came after 0, 1, ... no-ops."""
    options = {} if mode is None else {"mode": mode}
    env = make_vector_env(game, num_envs=6, num_threads=1, options=options)
    frames = [env.reset(seed=SEED)[1]["game_frames"]]
    frames += [env.reset()[1]["game_frames"] for _ in range(resets - 1)]
    env.close()
    return np.bincount(np.concatenate(frames) - frames_before_noops(game, mode), minlength=32)


@pytest.mark.parametrize(("game", "mode"), [("berzerk", None), ("breakout", 8)])
def test_a_game_that_buttons_start_has_a_noop_too(game, mode):
    counts = noop_counts(game, 30, mode)  # of 180 games 6 would have none
    assert counts[0] == 0 and counts[1:31].sum() == 180, f"seed {SEED}"


def test_noops_are_uniform_from_1_to_30():
    counts = noop_counts("pong", 70)
    assert counts[0] == 0 and counts[31] == 0, f"seed {SEED}"
    assert (counts[1:31] > 0).all() and counts.max() < 42, f"seed {SEED}"  # 14 expected
