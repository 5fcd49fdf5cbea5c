"""Any Gymnasium environment with a discrete action space, in the form the agents expect."""

import difflib
import importlib
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from .checks import Seeds, check_actions, environment_seeds, rows_to_reset
from .episodes import EpisodeStatistics

Observations = npt.NDArray[Any]
Actions = npt.NDArray[np.int64]
Step = tuple[
    Observations, npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
]


class GymnasiumEnvs(VectorEnv[Observations, Actions, npt.NDArray[Any]]):
    """Gives a same-step vector environment plain observations, and returns and lengths in its infos.

    Images (uint8, three axes) become [C, H, W]; every other observation becomes a float32 vector.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env
        self.protocol = None
        self.num_envs = env.num_envs
        self.metadata = {
            **env.metadata,
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "reset_mask": isinstance(env, SyncVectorEnv),
        }
        if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise ValueError("the environment must reset in the step in which an episode ends (SAME_STEP)")
        choices = env.single_action_space
        if not isinstance(choices, spaces.Discrete):
            raise ValueError(_action_space_message(choices))
        self._num_actions = int(choices.n)
        self._first_action = int(choices.start)
        self.single_action_space = spaces.Discrete(self._num_actions)
        self.single_observation_space = _plain_space(env.single_observation_space)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._channels_last = _is_image(env.single_observation_space) and not _channels_first(
            env.single_observation_space
        )
        self._statistics = EpisodeStatistics(self.num_envs)

    def reset(
        self, *, seed: Seeds | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        rows = rows_to_reset(options, self.num_envs)
        seeds = None if seed is None else environment_seeds(seed, self.num_envs).tolist()
        obs, _ = self._env.reset(seed=seeds, options=None if options is None else dict(options))
        infos = self._statistics.reset(rows)
        return self._plain(obs), {**infos, "forced": np.zeros(self.num_envs, bool)}

    def step(self, actions: npt.ArrayLike) -> Step:
        checked = check_actions(actions, self.num_envs, self._num_actions)
        obs, raw_rewards, terminated, truncated, _ = self._env.step(checked + self._first_action)
        rewards = np.asarray(raw_rewards, np.float64)
        nothing, done = np.zeros(self.num_envs, bool), terminated | truncated
        infos = self._statistics.update(rewards, ~nothing, nothing, done, done)
        infos["forced"] = nothing
        return self._plain(obs), rewards.astype(np.float32), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        self._env.close()

    def _plain(self, obs: Observations) -> Observations:
        if self._channels_last:
            return np.ascontiguousarray(np.moveaxis(obs, -1, 1))
        shape = (self.num_envs, *(self.single_observation_space.shape or ()))
        return np.array(obs, self.single_observation_space.dtype).reshape(shape)


def make_gymnasium_env(env_id: str, num_envs: int) -> GymnasiumEnvs:
    """Many copies of the environment registered as `env_id`; "module:Id-v0" imports the module first."""
    spec = _find_spec(env_id)
    env = _vector_entry_point(spec, num_envs)
    if env is None:
        try:
            env = gymnasium.make_vec(
                spec,
                num_envs,
                vectorization_mode="sync",
                vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
                wrappers=[_flat],  # type: ignore[list-item]  # returning the environment itself is fine
            )
        except (ImportError, gymnasium.error.DependencyNotInstalled) as missing:
            raise ValueError(f"{env_id} needs a package that is not installed: {missing}") from missing
    try:
        return GymnasiumEnvs(env)
    except ValueError as problem:
        env.close()
        raise ValueError(f"{env_id}: {problem}") from None


def _find_spec(env_id: str) -> gymnasium.envs.registration.EnvSpec:
    module, _, bare_id = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as missing:
            raise ValueError(
                f"cannot import {module!r} for {env_id}: {missing}; install the package that registers it"
            ) from missing
    try:
        spec = gymnasium.spec(bare_id)
    except gymnasium.error.Error as unknown:
        prefix = f"{module}:" if module else ""
        near = [prefix + name for name in difflib.get_close_matches(bare_id, _third_party_ids(), n=3)]
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "name the module that registers it as well, as in popgym:popgym-RepeatPreviousEasy-v0"
        )
        raise ValueError(f"unknown environment {env_id!r}: {hint}") from unknown
    if str(spec.entry_point).startswith("ale_py"):
        raise ValueError(f"{env_id} is an Atari game: give it as the game, so that a protocol applies")
    return spec


def _third_party_ids() -> list[str]:
    return [spec.id for spec in gymnasium.registry.values() if not str(spec.entry_point).startswith("ale_py")]


def _vector_entry_point(
    spec: gymnasium.envs.registration.EnvSpec, num_envs: int
) -> VectorEnv[Any, Any, Any] | None:
    """The environment's own vector form, if it can reset in the same step and needs no flattening."""
    if spec.vector_entry_point is None:
        return None
    try:
        env = gymnasium.make_vec(
            spec, num_envs, vectorization_mode="vector_entry_point", autoreset_mode=AutoresetMode.SAME_STEP
        )
    except (TypeError, ValueError, gymnasium.error.Error):  # it knows no such option
        return None
    box = isinstance(env.single_observation_space, spaces.Box)
    if env.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP and box:
        return env
    env.close()
    return None


def _flat(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Flattens what is not an image: one-hot for discrete values, side by side for tuples."""
    if _is_image(env.observation_space):
        return env
    if not env.observation_space.is_np_flattenable:
        raise ValueError(
            f"observations of {env.observation_space} have no fixed size and cannot be flattened"
        )
    return gymnasium.wrappers.FlattenObservation(env)


def _is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _channels_first(space: spaces.Space[Any]) -> bool:
    """An image has fewer channels than columns; where that does not tell, it is taken as [H, W, C]."""
    assert space.shape is not None
    return space.shape[0] < space.shape[2]


def _plain_space(space: spaces.Space[Any]) -> spaces.Box:
    if _is_image(space):
        assert space.shape is not None
        shape = space.shape if _channels_first(space) else (space.shape[2], *space.shape[:2])
        return spaces.Box(0, 255, shape, np.uint8)
    if not isinstance(space, spaces.Box):
        raise ValueError(f"observations of {space} have no fixed size and cannot be flattened")
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    with np.errstate(over="ignore"):
        return spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)


def _action_space_message(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.MultiDiscrete):
        remedy = (
            "MultiDiscrete is several choices at once: wrap the environment so that one number names them all"
        )
    else:
        remedy = "choose an environment with a Discrete action space, or wrap this one to have one"
    return f"actions of {space} are not supported; {remedy}"
