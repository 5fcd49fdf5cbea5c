"""The stretch of play that `eval --certificate` and `--why` look at: played once, examined once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from gymnasium.vector import VectorEnv
from rich.console import Console

from ...agents import Agent
from ..config import EvalConfig
from .examination import Examination, examine
from .play import Player
from .progress import progress
from .why_play import MOST_STEPS, Play, action_names, play_stretch


@dataclass(frozen=True)
class Stretch:
    """The first steps of an evaluation's first repeat."""

    agent: Agent
    play: Play
    names: Sequence[str]
    """Of the actions."""
    device: torch.device

    @cached_property
    def examination(self) -> Examination:
        """What the agent did in it. Raises whatever a core of one's own raises."""
        return examine(self.agent, self.play.inputs(self.device))


def take_stretch(
    config: EvalConfig,
    agent: Agent,
    player: Player,
    make_env: Callable[[int], VectorEnv],
    device: torch.device,
    console: Console,
) -> Stretch:
    """Play a stretch with `player`, which acts as `agent` does. Raises EnvironmentFailed."""
    env = make_env(1)
    names = action_names(env)
    with progress(console, "stretch") as tell:
        limit = min(MOST_STEPS, config.max_episode_steps)  # where the evaluation aborts an episode
        play = play_stretch(
            player, env, config.seed, not config.sample, config.episodes, device, limit, tell=tell
        )
    return Stretch(agent, play, names, device)
