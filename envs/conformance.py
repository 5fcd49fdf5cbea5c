"""Check that a vector environment keeps the contract of README.md, whatever it plays."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

Env = VectorEnv[Any, Any, Any]
MASKED = ("life_return", "life_length", "game_return", "game_length")


def check_vector_env(env: Env, steps: int = 300, seed: int = 0) -> None:
    """Raises AssertionError, saying what is wrong, unless `env` keeps the contract. Leaves it open."""
    _check_spaces(env)
    _check_actions_are_checked(env, seed)
    first = _play(env, steps, seed)
    again = _play(env, steps, seed)
    assert _same(first, again), "the same seed must play the same episodes"
    # Two seeds may play alike by chance: a few no-ops more before a game make no difference in some.
    others = (_play(env, steps, seed + more, action_seed=seed) for more in range(1, 9))
    assert any(not _same(first, other) for other in others), "other seeds must play other episodes"
    if env.metadata["reset_mask"] and env.num_envs > 1:
        _check_single_resets(env, steps // 4, seed)


def _check_spaces(env: Env) -> None:
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert isinstance(env.single_action_space, spaces.Discrete) and env.single_action_space.start == 0
    space = env.single_observation_space
    assert isinstance(space, spaces.Box)
    assert space.dtype in (np.uint8, np.float32)
    assert len(space.shape) == (3 if space.dtype == np.uint8 else 1), "images [C, H, W], all else [D]"


def _check_actions_are_checked(env: Env, seed: int) -> None:
    env.reset(seed=seed)
    assert isinstance(env.single_action_space, spaces.Discrete)
    beyond = np.full(env.num_envs, env.single_action_space.n)
    fractions = np.full(env.num_envs, 0.5)
    for bad in (beyond, np.full(env.num_envs, -1), fractions, np.zeros(env.num_envs + 1, np.int64)):
        try:
            env.step(bad)
        except ValueError:
            continue
        raise AssertionError(f"actions {bad} must raise a ValueError")


def _play(env: Env, steps: int, seed: int, action_seed: int | None = None) -> list[npt.NDArray[Any]]:
    """Plays at random, checks every step, and returns everything that was seen."""
    rng = np.random.default_rng(seed if action_seed is None else action_seed)
    assert isinstance(env.single_action_space, spaces.Discrete)
    obs, infos = env.reset(seed=seed)
    _check_observation(env, obs)
    _check_infos(env, infos)
    assert not any(infos[f"_{name}"].any() for name in MASKED), "nothing ends with a reset"
    seen = [obs]
    books = [_Book() for _ in range(env.num_envs)]
    for step in range(steps):
        actions = rng.integers(0, env.single_action_space.n, env.num_envs)
        before = obs.copy()
        returned = obs
        obs, rewards, terminated, truncated, infos = env.step(actions)
        assert np.array_equal(returned, before), "an observation must not change after it was returned"
        _check_observation(env, obs)
        _check_infos(env, infos)
        _check_last(env, truncated & ~terminated, infos)
        assert rewards.shape == (env.num_envs,) and rewards.dtype == np.float32
        for flags in (terminated, truncated):
            assert flags.shape == (env.num_envs,) and flags.dtype == np.bool_
        for row, book in enumerate(books):
            book.enter(step, row, rewards, terminated | truncated, infos)
        seen += [obs, rewards, terminated, truncated]
    return seen


def _check_single_resets(env: Env, steps: int, seed: int) -> None:
    """Check that one environment can begin a game from a seed while the others go on unaffected."""
    assert isinstance(env.single_action_space, spaces.Discrete)
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, env.single_action_space.n, (3 * steps, env.num_envs))
    first = np.arange(env.num_envs) == 0
    plays = []
    for before, alone in ((steps, True), (2 * steps, True), (2 * steps, False)):
        env.reset(seed=seed)
        for chosen in actions[2 * steps - before : 2 * steps]:
            shown = env.step(chosen)[0].copy()
        if alone:
            seeds: Any = [seed] * env.num_envs
            obs, infos = env.reset(seed=seeds, options={"reset_mask": first})
            assert _same([obs[1:]], [shown[1:]]), "the other environments must show what they showed"
            assert not any(infos[f"_{name}"].any() for name in MASKED), "nothing ends with a reset"
            plays.append([obs])
        else:
            plays.append([])
        plays[-1] += [x for chosen in actions[2 * steps :] for x in env.step(chosen)[:2]]
    short, long, plain = plays
    assert _same([x[:1] for x in short], [x[:1] for x in long]), "a seed must begin the same game at any time"
    assert _same([x[1:] for x in long[1:]], [x[1:] for x in plain]), "the other environments must go on"


def _check_observation(env: Env, obs: npt.NDArray[Any]) -> None:
    space = env.single_observation_space
    assert obs.shape == (env.num_envs, *(space.shape or ())) and obs.dtype == space.dtype


def _check_infos(env: Env, infos: dict[str, Any]) -> None:
    for name in MASKED:
        mask = infos[f"_{name}"]
        assert mask.shape == (env.num_envs,) and mask.dtype == np.bool_
        dtype = np.float32 if name.endswith("return") else np.int64
        assert infos[name].shape == (env.num_envs,) and infos[name].dtype == dtype
    for kind in ("life", "game"):
        assert np.array_equal(infos[f"_{kind}_return"], infos[f"_{kind}_length"])
    assert infos["score_wraps"].shape == (env.num_envs,) and infos["score_wraps"].dtype == np.int64
    assert infos["forced"].shape == (env.num_envs,) and infos["forced"].dtype == np.bool_


def _check_last(env: Env, cut: npt.NDArray[np.bool_], infos: dict[str, Any]) -> None:
    """Check that where there are last observations they are those of episodes that were truncated."""
    if "_final_obs" in infos:
        assert np.array_equal(infos["_final_obs"], cut), "last observations of what was truncated"
        _check_observation(env, infos["final_obs"])


class _Book:
    """One environment's rewards, added up step by step."""

    def __init__(self) -> None:
        self.life: list[float] = []
        self.game: list[float] = []
        self.wrapped = False

    def enter(
        self, step: int, row: int, rewards: npt.NDArray[Any], done: npt.NDArray[Any], infos: dict[str, Any]
    ) -> None:
        where = f"step {step}, environment {row}"
        if infos["forced"][row]:
            assert rewards[row] == 0, f"{where}: a forced step earns nothing"
        else:
            self.life.append(float(rewards[row]))
            self.game.append(float(rewards[row]))
        self.wrapped |= bool(infos["score_wraps"][row])
        if not self.wrapped:
            expected = bool(done[row]) and len(self.life) > 0
            assert infos["_life_return"][row] == expected, f"{where}: an episode's end and its return"
        assert done[row] or not infos["_game_return"][row], f"{where}: a game ends with a life"
        for name, rewards_since in (("life", self.life), ("game", self.game)):
            if infos[f"_{name}_return"][row]:
                assert infos[f"{name}_length"][row] == len(rewards_since), f"{where}: length of a {name}"
                total = sum(rewards_since)
                assert np.isclose(infos[f"{name}_return"][row], total, atol=1e-4), f"{where}: {name} return"
        if done[row]:
            self.life.clear()
        if infos["_game_return"][row]:
            self.game.clear()
            self.wrapped = False


def _same(first: list[npt.NDArray[Any]], second: list[npt.NDArray[Any]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
