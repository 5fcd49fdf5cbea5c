"""Make vector environments: the one entry point."""

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
from gymnasium.vector import VectorEnv

from .atari import AtariGames
from .making import make_gymnasium_env
from .observations import Reading
from .protocols import DEFAULT_PROTOCOL


def make_vector_env(
    game: str | None = None,
    *,
    env_id: str | None = None,
    num_envs: int,
    protocol: str = DEFAULT_PROTOCOL,
    num_threads: int | None = None,
    full_action_set: bool | None = None,
    observations: Reading | Literal["auto"] = "auto",
    options: Mapping[str, Any] | None = None,
    num_actions: int | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Make copies of an Atari game, under a protocol, or of any Gymnasium environment with discrete actions.

    num_threads: of the Atari emulators; by default one a core, as far as OMP_NUM_THREADS lets it.
    full_action_set: overrides the protocol's, to play under one protocol with an agent trained under another.
    observations: how those of an environment other than a game are read; auto guesses (README.md).
    options: further arguments of the environment's constructor; of a game, its mode and difficulty.
    num_actions: leaves only the first N actions of a game's set.

    What the environment promises is in README.md: same-step resets, raw rewards, and in its infos the returns
    and lengths of the lives and games that ended.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads}")
    if (game is None) == (env_id is None):
        raise ValueError("give either a game or an env_id")
    if game in gymnasium.registry:
        raise ValueError(f"{game!r} is an environment of Gymnasium's: give env_id={game!r}")
    if game is not None:
        return AtariGames(
            game, num_envs, protocol, num_threads, full_action_set, options=options, num_actions=num_actions
        )
    assert env_id is not None
    if num_actions is not None:
        raise ValueError(f"num_actions is for games; {env_id} has its own, omit it")
    return make_gymnasium_env(env_id, num_envs, observations, options)
