"""The stretch of play that `eval --certificate` and `--why` look at: played once, examined once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import VectorEnv
from rich.console import Console

from ...agents import Agent
from ..config import EvalConfig
from .environments import action_names
from .examination import Examination, Inputs, examine
from .play import Player, choose_actions
from .progress import progress

MOST_STEPS = 2_000
"""Agent steps of the stretch, unless its episodes end before."""


@dataclass(frozen=True)
class Play:
    """The first steps of an environment with one row, by agent step."""

    seed: int
    observations: list[npt.NDArray[Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """of the action before"""
    begins: list[bool] = field(default_factory=list)
    allowed: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    """of environments with action masks"""
    actions: list[int] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    """sum of rewards so far"""

    def inputs(self, device: torch.device | str) -> Inputs:
        """Return what the agent was given."""
        return Inputs(
            torch.from_numpy(np.stack(self.observations)).to(device),
            torch.tensor(self.rewards, device=device),
            torch.tensor(self.begins, device=device),
            torch.from_numpy(np.stack(self.allowed)).to(device) if self.allowed else None,
        )


def play_stretch(
    player: Player,
    env: VectorEnv,
    seed: int,
    greedy: bool,
    episodes: int,
    device: torch.device | str = "cpu",
    most_steps: int = MOST_STEPS,
    tell: Callable[[int, int, int], None] = lambda done, total, steps: None,
) -> Play:
    """Play as the first repeat of an evaluation with this seed does, `episodes` or `most_steps`.

    `env` has one row, and is closed at the end.
    """
    play, random = Play(seed), np.random.default_rng([seed, 0])
    try:
        observation, infos = env.reset(seed=seed)
        rewards, over, ended = np.zeros(1, np.float32), np.ones(1, bool), 0
        state = player.initial_state(1, device)
        while ended < episodes and len(play.actions) < most_steps:
            play.observations.append(observation[0].copy())
            play.rewards.append(float(rewards[0]))
            play.begins.append(bool(over[0]))
            seen, reward, done = (torch.from_numpy(each).to(device) for each in (observation, rewards, over))
            with torch.inference_mode():
                output, state = player.act(seen, reward, done, state, greedy=True)
                actions = choose_actions(output, infos, greedy, [random])
            if "action_mask" in infos:
                play.allowed.append(infos["action_mask"][0].copy())
            observation, rewards, terminated, truncated, infos = env.step(actions)
            over = terminated | truncated
            ended += int(over[0])
            play.actions.append(int(actions[0]))
            play.score.append(float(rewards[0]) + (play.score[-1] if play.score else 0.0))
            tell(ended, episodes, len(play.actions))
    finally:
        env.close()
    return play


@dataclass(frozen=True)
class Stretch:
    """The first steps of an evaluation's first repeat."""

    agent: Agent
    play: Play
    action_names: Sequence[str]
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
    name: str,
) -> Stretch:
    """Play a stretch with `player`, which acts as `agent` does; `name` says on the console what for.

    Raises EnvironmentFailed.
    """
    with progress(console, name) as tell:
        limit = min(MOST_STEPS, config.max_episode_steps)  # where the evaluation aborts an episode
        env = make_env(1)
        names = action_names(env)
        play = play_stretch(
            player, env, config.seed, not config.sample, config.episodes, device, limit, tell=tell
        )
    return Stretch(agent, play, names, device)
