"""The environments in which a saved agent is evaluated: with its own actions, under a protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gymnasium.vector import VectorEnv

from ...agents import AgentSpec
from ...envs import DEFAULT_PROTOCOL, find_protocol, game_info, make_vector_env, varied
from ..processes.supervision import slow
from ..runs.actions import ActionSet, action_set


def choose_protocol(
    spec: AgentSpec, wanted: str | None, flicker: float | None = None, blink: float | None = None
) -> str | None:
    """Choose the protocol to play under, with the agent's frame stack and, by default, its flicker and
    blinking; None for environments that have none. Raises ValueError."""
    if spec.game is None:
        for name, value in (("protocol", wanted), ("flicker", flicker), ("blink", blink)):
            if value is not None:
                raise ValueError(
                    f"--{name} {value}: protocols are for Atari games, not {spec.env_id}; omit it"
                )
        return None
    trained = find_protocol(spec.protocol or DEFAULT_PROTOCOL)
    return varied(
        wanted or spec.protocol or DEFAULT_PROTOCOL,
        trained.frame_stack,
        trained.flicker if flicker is None else flicker,
        trained.blink if blink is None else blink,
    )


def env_maker(spec: AgentSpec, protocol: str | None, num_threads: int | None) -> Callable[[int], VectorEnv]:
    """Return what makes n environments with the agent's own actions, whatever the protocol would offer."""
    options: dict[str, Any] = {"env_id": spec.env_id, "observations": spec.observations}
    if spec.game is not None:
        options = {
            "game": spec.game,
            "protocol": protocol or DEFAULT_PROTOCOL,
            "num_threads": num_threads,
            "full_action_set": full_action_set(spec),
        }
    options["options"] = spec.env_options
    return partial(_make_envs, options)


def _make_envs(options: dict[str, Any], count: int) -> VectorEnv:
    with slow(f"{options.get('game') or options['env_id']}: making it, and a first reset,"):
        return make_vector_env(num_envs=count, **options)


def check_fit(spec: AgentSpec, env: VectorEnv) -> None:
    """Raise ValueError if an environment other than a game is not what the agent was trained in."""
    if spec.game is not None:  # full_action_set looks at those
        return
    shape, actions = env.single_observation_space.shape, int(env.single_action_space.n)  # type: ignore[attr-defined]
    if (shape, actions) != (spec.observation_shape, spec.num_actions):
        raise ValueError(
            f"the agent was trained with observations of shape {spec.observation_shape} and "
            f"{spec.num_actions} actions, {spec.env_id} has {shape} and {actions}; evaluate it with the "
            "versions it was trained with"
        )


def full_action_set(spec: AgentSpec) -> bool:
    """Return whether the agent plays with all eighteen actions. Raises ValueError for another game's."""
    assert spec.game is not None
    which = action_set(spec.game, spec.num_actions)
    if which is None:
        own = game_info(spec.game).actions
        raise ValueError(
            f"the agent has {spec.num_actions} actions, {spec.game} has {own} or 18; "
            "evaluate an agent that was trained on this game"
        )
    return which is ActionSet.ALL


def action_names(env: VectorEnv) -> Sequence[str]:
    """Return the names of an environment's actions: its own, or numbers."""
    names: Sequence[str] = getattr(env, "action_meanings", ())
    actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
    return names if len(names) == actions else [f"action {n}" for n in range(actions)]
