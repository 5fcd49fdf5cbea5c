"""The environments of this package: what they pay to whom knows the answers, and to whom does not."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from deltabeast.envs import make_vector_env
from deltabeast.envs.builtin import SEQUENCES
from deltabeast.envs.conformance import check_vector_env
from deltabeast.envs.rewriting import FORWARD, LEFT, MOVES, ColorCubes, EndlessTMaze
from deltabeast.envs.sequences.code import NOTHING
from deltabeast.envs.sequences.sequences import NO_TARGET

NAMES = [f"deltabeast/{name}-v0" for name in (*SEQUENCES, "EndlessTMaze", "EndlessTMazeLong", "ColorCubes")]


@pytest.mark.parametrize("name", NAMES)
def test_conformance(name: str, seed: int) -> None:
    env = make_vector_env(env_id=name, num_envs=3)
    check_vector_env(env)
    env.close()


@pytest.mark.parametrize("name", SEQUENCES)
def test_right_answers_earn_one_each(name: str, seed: int) -> None:
    env = gymnasium.make(f"deltabeast/{name}-v0").unwrapped
    expected = SEQUENCES[name]().sample(np.random.Generator(np.random.PCG64(seed)), 1)
    unpaid = NOTHING if name == "Code" else NO_TARGET
    for wrong in (0, 1):
        symbols, _ = env.reset(seed=seed)
        seen, earned, done = [symbols], 0.0, False
        for target in expected.target[:, 0]:
            assert not done
            answer = (max(target, 0) + wrong) % env.action_space.n
            symbols, reward, done, _, _ = env.step(answer)
            seen.append(symbols)
            earned += reward
        assert done and (seen[-1] == seen[-2]).all()
        tokens = np.ravel_multi_index(tuple(np.array(seen[:-1]).T), env.observation_space.nvec)
        assert np.array_equal(tokens, expected.tokens[:, 0])
        assert earned == (0 if wrong else (expected.target > unpaid).sum())


def test_actions_have_the_names_that_an_environment_gives_them() -> None:
    for name, names in (("EndlessTMaze", ("FORWARD", "LEFT", "RIGHT")), ("ColorCubes", ())):
        env = make_vector_env(env_id=f"deltabeast/{name}-v0", num_envs=2)
        assert env.action_meanings == names  # type: ignore[attr-defined]
        env.close()


@pytest.mark.parametrize(("name", "length"), [("EndlessTMaze", 8), ("EndlessTMazeLong", 32)])
def test_corridors_are_as_long_as_said(name: str, length: int, seed: int) -> None:
    env = gymnasium.make(f"deltabeast/{name}-v0")
    lengths = set()
    for episode in range(60):
        (_, fork), _ = env.reset(seed=seed + episode)
        done, place = False, 0
        while not done:
            (cue, fork), _, done, _, _ = env.step(LEFT if fork else FORWARD)  # right or wrong
            place = 0 if cue else place + 1
            lengths |= {place} if fork else set()
    assert lengths == set(range(1, length + 1))


def test_a_maze_pays_those_who_turn_as_the_last_cue_said(seed: int) -> None:
    env = EndlessTMaze(length=4, corridors=10)
    for memory in (lambda cues: cues[-1], lambda cues: 3 - cues[-1], lambda cues: cues[0]):
        returns = []
        for episode in range(30):
            (cue, fork), _ = env.reset(seed=seed + episode)
            cues, total, done, steps = [cue], 0.0, False, 0
            while not done:
                (cue, fork), reward, done, truncated, _ = env.step(memory(cues) if fork else FORWARD)
                assert not truncated
                if cue:
                    cues.append(cue)
                total, steps = total + reward, steps + 1
            assert 10 * 2 <= steps <= 10 * 5
            returns.append(total)
        if memory([1, 2]) == 2:
            assert np.allclose(returns, 1)
        elif memory([1, 1]) == 2:
            assert np.allclose(returns, -1)
        else:  # who remembers the first cue guesses
            assert abs(np.mean(returns)) < 0.35


def test_who_waits_in_the_maze_is_cut(seed: int) -> None:
    env = EndlessTMaze(length=4, corridors=3)
    env.reset(seed=seed)
    ends = [env.step(np.int64(1 if step % 2 else 2))[2:4] for step in range(30)]
    assert ends[-1] == (False, True) and not any(truncated for _, truncated in ends[:-1])


def walk(env: ColorCubes, seed: int, forgets: bool) -> float:
    """Walk to where the cube asked for was told to be last; who forgets, to where it was told first."""
    seen, _ = env.reset(seed=seed)
    places: dict[int, tuple[int, int]] = {}
    total, over, steps = 0.0, False, 0
    while not over:
        column, row, asked, told, *place = (int(number) for number in seen)
        if told < 3 and not (forgets and told in places):
            places[told] = (place[0], place[1])
        right, down = places.get(asked, (column, row))
        step = (np.sign(right - column), 0) if right != column else (0, np.sign(down - row))
        seen, reward, done, truncated, _ = env.step(np.int64(MOVES.index((int(step[0]), int(step[1])))))
        total, over, steps = total + reward, done or truncated, steps + 1
    return total


def test_cubes_pay_those_who_remember_where_they_were_put_last(seed: int) -> None:
    env = ColorCubes()
    assert all(np.isclose(walk(env, seed + episode, forgets=False), 1) for episode in range(30))
    assert np.mean([walk(env, seed + episode, forgets=True) for episode in range(30)]) < 0.6


@pytest.mark.parametrize("option", ["length", "corridors"])
def test_mazes_that_cannot_be(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option} is 0; give at least 1$"):
        EndlessTMaze(**{option: 0})
