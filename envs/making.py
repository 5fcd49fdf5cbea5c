"""Build vector environments from a registered id or a factory: N copies, or its own vector form."""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from .brief import brief
from .finding import find_spec, required_options
from .gymnasium_env import GymnasiumEnvs
from .observations import Reading
from .parts import NumberParts, VectorNumberParts
from .rescue import (
    DoesNotStart,
    EnvironmentFailed,
    Rescue,
    Witness,
    close,
    describe,
    first_misfit,
    own_trace,
)

_MISSING = ImportError, gymnasium.error.DependencyNotInstalled
_OF_MAKE_VEC = frozenset({"num_envs", "vectorization_mode", "vector_kwargs", "wrappers"})
"""What `gymnasium.make_vec` takes out of the options of an environment."""


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
            if env.num_envs != num_envs:
                raise ValueError(f"it made {env.num_envs} environments; num_envs is {num_envs}, pass that on")
            return GymnasiumEnvs(env, left_out, observations, env_id)
        except ValueError:
            close(env, env_id)
            raise
    except EnvironmentFailed as failed:
        if isinstance(missing := failed.__cause__, _MISSING):
            raise ValueError(brief(f"{env_id} needs a package that is not installed: {missing}")) from missing
        raise DoesNotStart(str(failed), failed.trace) from failed
    except ValueError as problem:
        raise ValueError(brief(f"{env_id}: {problem}")) from problem
    except _MISSING as missing:
        raise ValueError(brief(f"{env_id} needs a package that is not installed: {missing}")) from missing
    except (Exception, SystemExit) as problem:  # whatever else the code of others raises
        message = f"{env_id} does not start: {describe(problem)}{_remedy(spec, problem)}"
        raise DoesNotStart(message, own_trace(problem)) from problem


def _remedy(spec: EnvSpec, problem: BaseException) -> str:
    """Say what an environment that does not start may lack; empty where that is not known."""
    if not isinstance(problem, TypeError):
        return ""
    if lacking := required_options(spec):
        return f"; give {', '.join(lacking)} as options (--env-options {lacking[0]} VALUE)"
    if "gymnasium.vector" in str(problem):
        return "; a function that makes a vector environment takes the parameter num_envs"
    return ""


def _side_by_side(spec: EnvSpec, num_envs: int) -> SyncVectorEnv:
    env = gymnasium.make_vec(
        spec,
        num_envs,
        vectorization_mode="sync",
        # ObservationReader makes new arrays anyway.
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False},
        wrappers=[Witness, NumberParts],
    )
    assert isinstance(env, SyncVectorEnv)
    with Rescue(env, spec.id):
        env.envs[0].reset()  # what files or packages it lacks may show only now
    if wrong := first_misfit(env):
        close(env, spec.id)
        raise ValueError(wrong)
    return env


def _own_vector_form(spec: EnvSpec, num_envs: int) -> VectorNumberParts | None:
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
            brief(f"{spec.id}: its vector form does not start, single ones do: {problem}"), stacklevel=2
        )
        return None
    if has_single and env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        close(env, spec.id)
        return None
    return VectorNumberParts(env)


def _vector_entry_point(spec: EnvSpec, num_envs: int) -> VectorEnv[Any, Any, Any]:
    make = partial(gymnasium.make_vec, spec, num_envs, vectorization_mode="vector_entry_point")
    try:
        return make(autoreset_mode=AutoresetMode.SAME_STEP)
    except (TypeError, ValueError):  # it may take no such option, or not this mode
        return make()
