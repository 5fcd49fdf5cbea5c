"""Names, tables and what a game needs to be played."""

from dataclasses import replace

import numpy as np
import pytest
from session_seed import SEED

from deltabeast.envs import (
    PAPER_GAMES,
    PROTOCOLS,
    action_meanings,
    canonical_game,
    game_info,
    game_names,
    human_normalized,
    make_vector_env,
)
from deltabeast.envs.games import _known_games, ask_emulator


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("Gopher", "gopher"),
        ("gopher", "gopher"),
        ("ALE/Gopher-v5", "gopher"),
        ("GopherNoFrameskip-v4", "gopher"),
        ("space-invaders", "space_invaders"),
        ("SpaceInvaders", "space_invaders"),
        ("Q*Bert", "qbert"),
        ("Up'n down", "up_n_down"),
        ("B. Heist", "bank_heist"),
        ("atlantis2", "atlantis2"),
    ],
)
def test_spellings(name, game):
    assert canonical_game(name) == game


def test_every_game_is_found_by_its_own_name():
    assert [canonical_game(game) for game in game_names()] == game_names()
    assert set(PAPER_GAMES) <= set(game_names()) and len(PAPER_GAMES) == 20


@pytest.mark.parametrize(
    ("typo", "near"), [("gophre", "gopher"), ("brekout", "breakout"), ("zzz", "lists them all")]
)
def test_a_typo_lists_near_names(typo, near):
    with pytest.raises(ValueError, match=near):
        canonical_game(typo)


@pytest.mark.parametrize("name", ["combat", "Joust", "ALE/MazeCraze-v5", "warlords"])
def test_games_for_two_are_known_and_refused(name):
    with pytest.raises(ValueError, match=f"^{name} is for two players only"):
        canonical_game(name)


def test_game_info():
    assert action_meanings("Pong") == ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")
    no_fire = {game for game in PAPER_GAMES if not game_info(game).fire}
    assert no_fire == {"ms_pacman", "kung_fu_master"}
    sizes = {"alien": 18, "amidar": 10, "gopher": 8, "jamesbond": 18, "kung_fu_master": 14, "up_n_down": 6}
    assert {game: game_info(game).actions for game in sizes} == sizes
    assert len(action_meanings("pong", full=True)) == 18
    assert game_info("breakout").lives == 5


def test_the_table_says_what_the_emulator_says():
    assert set(_known_games()) == set(game_names())
    rng = np.random.default_rng(SEED)
    for game in rng.choice(game_names(), 10, replace=False):
        known = replace(game_info(game), random=None, human=None)
        assert known == ask_emulator(str(game)), f"seed {SEED}"


def test_scores_are_of_the_57_games_that_papers_report():
    scored = {game: game_info(game) for game in game_names() if game_info(game).human is not None}
    assert len(scored) == 57 and set(PAPER_GAMES) <= set(scored)
    assert all(info.random < info.human for info in scored.values())


def test_human_normalized():
    assert human_normalized("pong", -20.7) == 0
    assert human_normalized("pong", 14.6) == 1
    assert human_normalized("breakout", 30.5) == 1  # not of the published twenty
    assert human_normalized("adventure", 30) is None


def test_the_action_set_can_be_chosen():
    env = make_vector_env("pong", num_envs=1, protocol="ale-standard", full_action_set=False, num_threads=1)
    assert env.single_action_space.n == 6 and env.action_meanings == action_meanings("pong")
    env.close()
    env = make_vector_env("pong", num_envs=1, full_action_set=True, num_threads=1)
    assert env.single_action_space.n == 18
    env.close()


def play_without_fire(protocol, steps=500):
    """How many lives a player loses who never presses FIRE."""
    env = make_vector_env("breakout", num_envs=4, protocol=protocol, num_threads=1)
    env.reset(seed=SEED)
    rng = np.random.default_rng(SEED)
    lost, games = 0, 0
    lives = np.full(4, 5)
    for _ in range(steps):
        *_, infos = env.step(rng.choice([0, 2, 3], 4))
        lost += int((infos["lives"] != lives).sum())
        games += int(infos["_game_return"].sum())
        lives = infos["lives"]
    env.close()
    return lost, games


def test_the_ball_is_served_after_every_life():
    lost, games = play_without_fire("paper-code")
    assert games >= 4 and lost >= 5 * games, f"seed {SEED}"


def test_without_fire_nothing_moves():
    assert play_without_fire("ale-standard") == (0, 0)


def test_a_game_is_cut_at_the_frame_limit(monkeypatch):
    import dataclasses

    short = dataclasses.replace(
        PROTOCOLS["paper-code"], max_frames=400, max_frames_of={"space_invaders": 200}
    )
    monkeypatch.setitem(PROTOCOLS, "paper-code", short)
    for game, steps in (("pong", 100), ("space_invaders", 50)):
        env = make_vector_env(game, num_envs=2, num_threads=1)
        env.reset(seed=SEED)
        for step in range(1, steps + 1):
            _, _, _, truncated, infos = env.step(np.zeros(2, np.int64))
            assert (truncated == (step == steps)).all(), f"{game}, seed {SEED}"
        assert infos["_game_return"].all()
        env.close()


@pytest.mark.parametrize("protocol", ["paper-code", "ale-standard", "paper-code+stack3+flicker0.5"])
@pytest.mark.parametrize("frames", [8, 200])
def test_what_a_cut_game_showed_last_is_what_a_longer_one_shows(protocol, frames, monkeypatch):
    """Also before the stack is full."""
    base, _, variation = protocol.partition("+")
    for name, limit in (("short", frames), ("long", 10**6)):
        rules = replace(PROTOCOLS[base], max_frames=limit, max_frames_of={}, press_fire=False)
        monkeypatch.setitem(PROTOCOLS, name, rules)
    names = [f"{name}+{variation}".rstrip("+") for name in ("short", "long")]
    short, long = (make_vector_env("pong", num_envs=2, protocol=name, num_threads=1) for name in names)
    for env in (short, long):
        env.reset(seed=SEED)
    actions = np.random.default_rng(SEED).integers(0, 6, (frames // 4, 2))
    for chosen in actions:
        shown, _, _, truncated, infos = short.step(chosen)
        longer, *_ = long.step(chosen)
    assert truncated.all() and infos["_final_obs"].all()
    last = infos["final_obs"]
    np.testing.assert_array_equal(last[:, :-1], longer[:, :-1])
    # ALE stops within its frame skip, so that its newest screen is a few frames old.
    assert (last[:, -1] != longer[:, -1]).mean() < 0.02
    assert np.array_equal(last[:, -1].any((1, 2)), longer[:, -1].any((1, 2))), "flicker"
    assert not np.array_equal(shown, longer)
    for env in (short, long):
        env.close()
