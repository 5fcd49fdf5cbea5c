"""Vector environments of one's own, in every autoreset mode, show the agent the same episodes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from deltabeast.envs import EnvironmentFailed, make_vector_env
from deltabeast.envs.conformance import check_vector_env
from deltabeast.envs.gymnasium_env import GymnasiumEnvs

MODES = list(AutoresetMode)
SEEDS: list[Any] = []
"""what the environments below were reset with"""


class Vec(VectorEnv):
    """Column i's episodes last 2 + i steps, or as long as its generator says; a step pays 1 + its action."""

    def __init__(self, num_envs: int = 1, autoreset_mode: Any = AutoresetMode.NEXT_STEP) -> None:
        self.num_envs, self.mode = num_envs, AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space = self.space()
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def space(self) -> spaces.Space:
        return spaces.Box(-1, 100, (2,), np.float32)

    def observe(self) -> Any:
        return np.stack([self.count, self.length], 1).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        VectorEnv.reset(self, seed=seed)  # Gymnasium's own: it takes an integer
        SEEDS.append(seed)
        if options is None:
            self.count, self.length = np.zeros((2, self.num_envs), int)
            self.ended = np.zeros(self.num_envs, bool)
        self.begin(np.ones(self.num_envs, bool) if options is None else options["reset_mask"])
        return self.observe(), {}

    def begin(self, rows: np.ndarray) -> None:
        self.count[rows], self.ended[rows] = 0, False
        self.length[rows] = self.np_random.integers(2, 9, rows.sum())

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        resets = self.ended.copy()
        self.count += ~resets
        rewards = np.where(resets, 0.0, 1.0 + actions)
        done = (self.count >= self.length) & ~resets
        self.begin(resets)
        if self.mode == AutoresetMode.SAME_STEP:
            self.begin(done)
        if self.mode == AutoresetMode.NEXT_STEP:
            self.ended = done
        return self.observe(), rewards, done & (self.length % 2 == 0), done & (self.length % 2 == 1), {}


class SameStepFixed(Vec):
    """Takes no mode."""

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs, AutoresetMode.SAME_STEP)


class NextStepFixed(Vec):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs, AutoresetMode.NEXT_STEP)


class DisabledFixed(Vec):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs, AutoresetMode.DISABLED)


class NoSameStep(Vec):
    """Takes a mode, but not this one."""

    def __init__(self, num_envs: int = 1, autoreset_mode: Any = AutoresetMode.NEXT_STEP) -> None:
        if autoreset_mode == AutoresetMode.SAME_STEP:
            raise ValueError("autoreset_mode must be NextStep")
        super().__init__(num_envs, autoreset_mode)


class Heedless(DisabledFixed):
    """Resets every column, whatever the mask says."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)


class Undeclared(Vec):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.metadata = {"autoreset_mode": "Sometimes"}


class Licensed(Vec):
    def __init__(self, num_envs: int = 1, autoreset_mode: Any = None) -> None:
        raise ValueError(f"at most 4 copies fit on this licence,\nnot {num_envs}")


class Forgetful(Vec):
    def __init__(self, num_envs: int = 1, autoreset_mode: Any = None) -> None:
        len(None)  # type: ignore[arg-type]


class ManySeeds(Vec):
    def reset(
        self, *, seed: int | list[int] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        SEEDS.append(seed)
        observation = super().reset(seed=0, options=options)
        SEEDS.pop()
        return observation


class SeedArray(ManySeeds):
    def reset(self, *, seed: int | np.ndarray | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)


class Unannotated(Vec):
    def reset(self, seed=None, options=None):  # type: ignore[no-untyped-def]
        return super().reset(seed=seed, options=options)


class Parts(Vec):
    """Shows a number, a choice, and a word, which is left out."""

    def space(self) -> spaces.Space:
        return spaces.Dict({"a": spaces.Box(0, 9, (1,)), "b": spaces.Discrete(9), "c": spaces.Text(3)})

    def observe(self) -> Any:
        words = ("x",) * self.num_envs
        return {"a": self.length[:, None].astype(np.float32), "b": self.count.copy(), "c": words}


class Single(gymnasium.Env):
    """The form for one environment of what has both."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


OWN = (
    SameStepFixed,
    Vec,
    NextStepFixed,
    DisabledFixed,
    NoSameStep,
    Heedless,
    Undeclared,
    Licensed,
    Forgetful,
)
for kind in (*OWN, ManySeeds, SeedArray, Unannotated, Parts):
    gymnasium.register(f"deltabeast-vec/{kind.__name__}-v0", entry_point=None, vector_entry_point=kind)
for kind in (SameStepFixed, NextStepFixed, Licensed):
    gymnasium.register(f"deltabeast-vec/Both{kind.__name__}-v0", Single, vector_entry_point=kind)


def make(name: str, num_envs: int = 3) -> GymnasiumEnvs:
    env = make_vector_env(env_id=f"deltabeast-vec/{name}-v0", num_envs=num_envs)
    assert isinstance(env, GymnasiumEnvs)
    return env


class Watched:
    """What the agents of a vector environment see, do and earn, column by column, forced steps apart."""

    def __init__(self, env: GymnasiumEnvs, steps: int, seed: int) -> None:
        observations, _ = env.reset(seed=seed)
        self.steps: list[list[tuple[Any, ...]]] = [[] for _ in range(env.num_envs)]
        self.scores: list[list[tuple[float, int]]] = [[] for _ in range(env.num_envs)]
        self.forced = 0
        begins = np.ones(env.num_envs, bool)
        for _ in range(steps):
            actions = (1e4 * observations.sum(1)).astype(int) % 2  # by the observation alone
            shown = observations
            observations, rewards, terminated, truncated, infos = env.step(actions)
            for i, own in enumerate(~infos["forced"]):
                if own:
                    self.steps[i].append((tuple(shown[i]), bool(begins[i]), float(rewards[i])))
                else:
                    self.forced += 1
                    assert rewards[i] == 0 and (terminated | truncated)[i]
                if infos["_game_return"][i]:
                    ended_by = bool(terminated[i]), bool(truncated[i])
                    score = float(infos["game_return"][i]), int(infos["game_length"][i]), *ended_by
                    self.scores[i].append(score)
            begins = terminated | truncated


def test_the_three_modes_show_the_same_episodes(seed: int) -> None:
    """Gymnasium's own vector environment has all three, and its columns' games follow from their seeds."""

    def cart_poles(mode: AutoresetMode) -> GymnasiumEnvs:
        makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)] * 5
        return GymnasiumEnvs(SyncVectorEnv(makers, autoreset_mode=mode))

    same, *others = (
        Watched(cart_poles(mode), 200, seed)
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)
    )
    ends = {end for scores in same.scores for *_, end in scores}
    assert ends == {False, True}, "some episodes fall, some are cut"
    for other, resets in zip(others, (sum(map(len, others[0].scores)), 0), strict=True):
        assert other.forced == resets
        assert sum(map(len, other.steps)) == 5 * 200 - resets
        for expected, found in ((same.steps, other.steps), (same.scores, other.scores)):
            for column, (a, b) in enumerate(zip(expected, found, strict=True)):
                assert len(b) > 5
                assert a[: len(b)] == b, f"column {column}"


@pytest.mark.parametrize("kind", [SameStepFixed, Vec, NextStepFixed, DisabledFixed, NoSameStep, Parts])
def test_own_vector_environments_keep_the_contract(kind: type, seed: int) -> None:
    env = make(kind.__name__)
    check_vector_env(env, steps=80, seed=seed)
    watched = Watched(env, 80, seed)
    for steps, scores in zip(watched.steps, watched.scores, strict=True):
        assert all(length <= total <= 2 * length for total, length, *_ in scores)
        assert 0 <= len(steps) - sum(length for _, length, *_ in scores) < 9, "all steps of the agent count"
    assert watched.forced == (kind in (NextStepFixed, NoSameStep)) * sum(map(len, watched.scores))
    env.close()


def test_a_mode_is_asked_for_where_it_can_be() -> None:
    vectors = {kind: make(kind.__name__)._env.unwrapped for kind in (Vec, NoSameStep, SameStepFixed)}
    assert [env.mode for env in vectors.values()] == [MODES[1], MODES[0], MODES[1]]


@pytest.mark.parametrize("kind", [Vec, Unannotated, ManySeeds, SeedArray])
def test_seeds_come_as_reset_takes_them(kind: type, seed: int) -> None:
    env = make(kind.__name__)
    given = []
    for seeds in (seed, seed + 1, [seed, 5, 7], [seed, 5, 8], seed):
        env.reset(seed=seeds)
        given.append(SEEDS[-1])
    assert {type(each) for each in given} == {{ManySeeds: list, SeedArray: np.ndarray}.get(kind, int)}
    plain = [np.ravel(each).tolist() for each in given]
    assert len({tuple(each) for each in plain}) == 4 and plain[0] == plain[-1]
    if kind in (ManySeeds, SeedArray):
        assert plain[2:4] == [[seed, 5, 7], [seed, 5, 8]] and len(set(plain[0])) == 3


def test_parts_of_a_vector_environment_are_joined_or_left_out(seed: int) -> None:
    env = make("Parts", 2)
    assert env.left_out == ("c (Text)",)
    observations, _ = env.reset(seed=seed)
    assert observations.shape == (2, 10) and (observations[:, 1:] == np.eye(9)[0]).all()
    observations, *_ = env.step([0, 1])
    assert (observations[:, 1:] == np.eye(9)[1]).all() and (observations[:, 0] * 9 >= 2 - 1e-6).all()


@pytest.mark.filterwarnings("ignore:.*is not an instance of AutoresetMode")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Licensed, "^deltabeast-vec/Licensed-v0: at most 4 copies fit on this licence, not 3$"),
        (
            Forgetful,
            "Forgetful-v0 does not start: TypeError: object of type 'NoneType' has no len",
        ),
        (Undeclared, r"metadata\['autoreset_mode'\] is 'Sometimes', .* AutoresetMode.DISABLED$"),
    ],
)
def test_what_is_refused_says_what_it_is(kind: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(kind.__name__)


def test_a_reset_that_ignores_its_mask_is_refused(seed: int) -> None:
    env = make("Heedless", 3)
    env.reset(seed=seed)
    env._env.unwrapped.length[:] = 2, 3, 4
    env.step([0, 0, 0])
    with pytest.raises(EnvironmentFailed, match=r"Heedless-v0: .* outside options"):
        env.step([0, 0, 0])


@pytest.mark.filterwarnings("ignore:.*at most 4 copies")
def test_of_two_forms_the_one_that_wastes_no_step_is_taken() -> None:
    forms = {
        name: make(f"Both{name}")._env.unwrapped for name in ("SameStepFixed", "NextStepFixed", "Licensed")
    }
    kinds = [type(form) for form in forms.values()]
    assert kinds == [SameStepFixed, SyncVectorEnv, SyncVectorEnv]
    with pytest.warns(UserWarning, match="at most 4 copies fit"):
        make("BothLicensed")
