"""Any Gymnasium environment with discrete actions, in the form the agents expect."""

import copy
import difflib
import importlib
import importlib.metadata
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from .action_table import action_table
from .autoreset import DelayedEnds, in_same_step
from .callables import callable_spec, near_callables
from .checks import Seeds, check_actions, finite, reset_seed, rows_to_reset
from .episodes import EpisodeStatistics
from .observations import PlainObservations, Reading
from .parts import NumberParts, VectorNumberParts
from .rescue import Rescue, Witness, describe, first_misfit

Observations = npt.NDArray[Any]
Actions = npt.NDArray[np.int64]
Step = tuple[
    Observations, npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
]

_OF_MAKE_VEC = frozenset({"num_envs", "vectorization_mode", "vector_kwargs", "wrappers"})
"""What `gymnasium.make_vec` takes out of the options of an environment."""


class GymnasiumEnvs(VectorEnv[Observations, Actions, npt.NDArray[Any]]):
    """A same-step vector environment with plain observations, numbered actions, and returns and lengths of
    episodes in its infos.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        left_out: Sequence[str] = (),
        observations: Reading | Literal["auto"] = "auto",
        name: str = "the environment",
    ) -> None:
        """`env` has any autoreset mode, and numbers or a flat tuple of them as observations; `left_out` names
        parts of the environment's observations that it does not show; `name` is for messages.
        """
        self._env = in_same_step(env)
        self._name = name
        self.protocol = None
        self.left_out = tuple(left_out)
        self.num_envs = env.num_envs
        self.metadata = {
            **env.metadata,
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "reset_mask": isinstance(env, SyncVectorEnv),
        }
        self._actions = action_table(env.single_action_space)
        self._plain = PlainObservations(env.single_observation_space, observations)
        if 0 in (self._plain.space.shape or ()):
            raise ValueError(f"its observations, {env.single_observation_space}, hold no number to read")
        self.reading = self._plain.reading
        self._rescue = Rescue(env, self._name)
        space = env.observation_space
        self._shapes = [part.shape for part in (space.spaces if isinstance(space, spaces.Tuple) else [space])]
        self.single_action_space = spaces.Discrete(len(self._actions))
        self.single_observation_space = self._plain.space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._statistics = EpisodeStatistics(self.num_envs)
        self._none = np.zeros(self.num_envs, bool)
        self._lacks_last = False

    def reset(
        self, *, seed: Seeds | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        rows = rows_to_reset(options, self.num_envs)
        given = None if seed is None else reset_seed(self._env, seed)
        with self._rescue:
            obs, _ = self._env.reset(seed=given, options=None if options is None else dict(options))
            plain = self._read(obs)
        infos = self._statistics.reset(rows)
        return plain, {**infos, "forced": self._none.copy()}

    def step(self, actions: npt.ArrayLike) -> Step:
        checked = check_actions(actions, self.num_envs, len(self._actions))
        with self._rescue:
            obs, raw_rewards, terminated, truncated, shown = self._env.step(self._actions[checked])
            plain, rewards = self._read(obs), finite(raw_rewards)
            last = self._last_observations(truncated & ~terminated, shown)
        done = terminated | truncated
        forced = self._env.resetting if isinstance(self._env, DelayedEnds) else self._none
        infos = self._statistics.update(rewards, ~forced, self._none, done, done)
        infos["forced"] = forced.copy()
        infos |= last
        if self._plain.notes:
            infos |= self._notes()
        return plain, rewards.astype(np.float32), terminated, truncated, infos

    def _last_observations(self, rows: npt.NDArray[np.bool_], shown: dict[str, Any]) -> dict[str, Any]:
        """Return the infos about episodes that were truncated in `rows`, given those of the environment."""
        if not np.count_nonzero(rows):
            return {}
        if "final_obs" not in shown:
            self._note_missing()
            return {}
        each = [shown["final_obs"][row] for row in np.flatnonzero(rows)]
        space = self._env.single_observation_space
        room: Any = create_empty_array(space, len(each))
        last = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)
        last[rows] = self._plain(concatenate(space, each, room))
        return {"final_obs": last, "_final_obs": rows}

    def _note_missing(self) -> None:
        if not self._lacks_last:
            self._lacks_last = True
            self._plain.notes.append(
                "its infos lack final_obs where an episode is truncated, which is learned from as if it had "
                "terminated"
            )

    def _notes(self) -> dict[str, Any]:
        """Take what there is to say of the observations, once."""
        notes, self._plain.notes = self._plain.notes, []
        return {"notes": [f"{self._name}: {note}" for note in notes]}

    def _read(self, observations: Any) -> Observations:
        values = observations if isinstance(observations, tuple) else (observations,)
        for value, shape in zip(values, self._shapes, strict=True):
            if value.shape != shape:
                raise ValueError(f"observations of shape {value.shape} where its space says {shape}")
        return self._plain(observations)

    def close_extras(self, **kwargs: Any) -> None:
        self._env.close()


def make_gymnasium_env(
    env_id: str,
    num_envs: int,
    observations: Reading | Literal["auto"] = "auto",
    options: Mapping[str, Any] | None = None,
) -> GymnasiumEnvs:
    """Many copies of an environment that `find_spec` finds; `options` go to its constructor."""
    spec = find_spec(env_id)
    if taken := _OF_MAKE_VEC.intersection(options or ()):
        raise ValueError(f"{env_id} has no option {min(taken)!r}: it is Gymnasium's own")
    spec.kwargs = {**spec.kwargs, **(options or {})}
    try:
        env = _own_vector_form(spec, num_envs) or _side_by_side(spec, num_envs)
        left_out = env.get_attr("left_out")[0] if isinstance(env, SyncVectorEnv) else env.left_out
        try:
            return GymnasiumEnvs(env, left_out, observations, env_id)
        except ValueError:
            env.close()
            raise
    except ValueError as problem:
        raise ValueError(_line(f"{env_id}: {problem}")) from problem
    except (ImportError, gymnasium.error.DependencyNotInstalled) as missing:
        raise ValueError(_line(f"{env_id} needs a package that is not installed: {missing}")) from missing
    except (Exception, SystemExit) as problem:  # whatever else the code of others raises
        raise ValueError(f"{env_id} does not start: {describe(problem)}") from problem


def _side_by_side(spec: gymnasium.envs.registration.EnvSpec, num_envs: int) -> SyncVectorEnv:
    env = gymnasium.make_vec(
        spec,
        num_envs,
        vectorization_mode="sync",
        # PlainObservations makes new arrays anyway.
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False},
        wrappers=[Witness, NumberParts],
    )
    assert isinstance(env, SyncVectorEnv)
    env.envs[0].reset()  # what files or packages it lacks may show only now
    if wrong := first_misfit(env):
        env.close()
        raise ValueError(wrong)
    return env


def _line(text: str) -> str:
    return " ".join(text.split())


def find_spec(env_id: str) -> gymnasium.envs.registration.EnvSpec:
    """Return a copy of the specification registered as `env_id`. "module:Id-v0" imports the module first;
    "module:name" is a class or function of it that makes an environment, where no such id is registered.

    Raises ValueError, with near names.
    """
    module, _, bare_id = env_id.rpartition(":")
    if module:
        _register(module, bare_id, env_id)
        if bare_id not in gymnasium.registry and (own := callable_spec(module, bare_id)):
            return own
    try:
        spec = copy.deepcopy(gymnasium.spec(bare_id))
    except gymnasium.error.Error as unknown:
        prefix = f"{module}:" if module else ""
        names = [
            *(near_callables(module, bare_id) if module else ()),
            *difflib.get_close_matches(bare_id, _third_party_ids(), n=3),
        ]
        near = [prefix + name for name in names]
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "name the module that registers it as well, as in popgym:popgym-RepeatPreviousEasy-v0"
        )
        raise ValueError(f"unknown environment {env_id!r}: {hint}") from unknown
    if str(spec.entry_point).startswith("ale_py"):
        raise ValueError(f"{env_id} is an Atari game: give it as the game, so that a protocol applies")
    return spec


def _register(module: str, bare_id: str, env_id: str) -> None:
    """Import `module`. Should that not register the environment, run what its package declares for it."""
    try:
        importlib.import_module(module)
        package = module.partition(".")[0]
        if bare_id in gymnasium.registry:
            return
        for declared in importlib.metadata.entry_points(group="gymnasium.envs"):
            if declared.module.partition(".")[0] == package and callable(register := declared.load()):
                register()
    except ImportError as missing:
        raise ValueError(
            f"cannot import {module!r} for {env_id}: {missing}; install the package that registers it, or "
            "work in the folder that holds it"
        ) from missing
    except (Exception, SystemExit) as problem:  # whatever the code of others raises
        raise ValueError(f"importing {module!r} for {env_id} failed: {describe(problem)}") from problem


def _third_party_ids() -> list[str]:
    return [spec.id for spec in gymnasium.registry.values() if not str(spec.entry_point).startswith("ale_py")]


def _own_vector_form(spec: gymnasium.envs.registration.EnvSpec, num_envs: int) -> VectorNumberParts | None:
    """Make the environment's own vector form, unless copies of a single form of it serve better: where the
    vector form does not reset in the same step, or cannot be made.
    """
    if spec.vector_entry_point is None:
        return None
    has_single = spec.entry_point is not None
    try:
        env = _vector_entry_point(spec, num_envs)
    except (TypeError, ValueError, gymnasium.error.Error) as problem:
        if not has_single:
            raise
        warnings.warn(
            _line(f"{spec.id}: its vector form does not start, single ones do: {problem}"), stacklevel=2
        )
        return None
    if has_single and env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        env.close()
        return None
    return VectorNumberParts(env)


def _vector_entry_point(spec: gymnasium.envs.registration.EnvSpec, num_envs: int) -> VectorEnv[Any, Any, Any]:
    make = partial(gymnasium.make_vec, spec, num_envs, vectorization_mode="vector_entry_point")
    try:
        return make(autoreset_mode=AutoresetMode.SAME_STEP)
    except (TypeError, ValueError) as problem:
        if "autoreset" not in str(problem):
            raise
        return make()  # it takes no such option, or not this mode
