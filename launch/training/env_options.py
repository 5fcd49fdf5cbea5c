"""`--env-options`: words from the command line become what the environment's constructor declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cores.options import Option, options_of, validate_options
from ...envs import canonical_game
from ...envs.consoles import check_choices
from ...envs.finding import constructor, find_spec

_LIMIT = "max_episode_steps"
"""Gymnasium's own, which every environment takes."""


def read_env_options(game: str | None, env_id: str | None, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with their types. The environment is imported if there are any.

    Raises ValueError, in one line with near names, for one that the environment does not take.
    """
    if not words:
        return {}
    if game is not None:
        return {**check_choices(canonical_game(game), words)}
    assert env_id is not None
    if "num_envs" in words:
        raise ValueError("--env-options num_envs: how many are played at once is --num-envs")
    spec = find_spec(env_id)
    given = dict(words)
    limit = {_LIMIT: Option(_LIMIT, (int,), (), None, "").read(given.pop(_LIMIT))} if _LIMIT in given else {}
    make = constructor(spec)
    # What is registered with the environment need not be given again, nor the number of a vector's.
    defaults = {**({"num_envs": 1} if "num_envs" in options_of(make, skip=0) else {}), **spec.kwargs}
    values = validate_options(env_id, make, {**defaults, **given}, parse=True, kind="environment", skip=0)
    return {**{name: values[name] for name in given}, **limit}
