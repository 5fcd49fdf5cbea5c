"""Playing a fixed number of episodes with an agent, and the statistics of its returns."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from ..agents import AgentOutput
from .errors import RunError
from .statistics import bootstrap_interval

State = tuple[Tensor, ...]


class Player(Protocol):
    """What can be evaluated: an agent, or something that acts like one."""

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State: ...

    def act(
        self,
        frame: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[AgentOutput, State]: ...


class RandomAgent:
    """Plays every action with the same probability: the score that training starts from."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return ()

    def act(
        self,
        frame: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[AgentOutput, State]:
        batch = len(reward)
        action = torch.randint(self.num_actions, (batch,), generator=generator, device=reward.device)
        zeros = torch.zeros(batch, self.num_actions, device=reward.device)
        return AgentOutput(action, zeros, zeros[:, 0]), state


@dataclass(frozen=True)
class Summary:
    """The statistics of some returns. `mean` and `std` are of the repeats' means, as in the publication."""

    mean: float
    std: float
    """population standard deviation of the repeats' means"""
    repeat_means: list[float]
    overall_mean: float
    """over all episodes: differs from `mean` where repeats have different numbers of them"""
    interval: tuple[float, float]
    """95% bootstrap interval of `overall_mean`, over episodes"""
    minimum: float
    maximum: float
    mean_length: float
    """agent steps"""
    count: int


@dataclass
class Returns:
    """Returns and lengths by repeat, in the order they were played."""

    returns: list[list[float]]
    lengths: list[list[int]]

    def summary(self) -> Summary | None:
        """None if nothing was finished."""
        every = [value for repeat in self.returns for value in repeat]
        if not every:
            return None
        means = [statistics.fmean(repeat) for repeat in self.returns if repeat]
        return Summary(
            mean=statistics.fmean(means),
            std=statistics.pstdev(means),
            repeat_means=means,
            overall_mean=statistics.fmean(every),
            interval=bootstrap_interval(every),
            minimum=min(every),
            maximum=max(every),
            mean_length=statistics.fmean(length for repeat in self.lengths for length in repeat),
            count=len(every),
        )


@dataclass
class Evaluation:
    """What an agent played. `life`: its own episodes; `game`: the whole games that ended among them."""

    episodes: int
    repeats: int
    life: Returns
    game: Returns
    discarded_negative: int = 0
    """episodes left out because their return was negative"""
    discarded_wrapped: int = 0
    """episodes left out because their score wrapped and their return is unknown"""
    score_wraps: int = 0
    steps: int = 0
    """agent steps played, those of rows that had finished left out"""


@dataclass
class _Row:
    """One repeat: its environment's episodes so far."""

    life_returns: list[float] = field(default_factory=list)
    life_lengths: list[int] = field(default_factory=list)
    game_returns: list[float] = field(default_factory=list)
    game_lengths: list[int] = field(default_factory=list)
    episode_steps: int = 0
    wrapped: bool = False


def evaluate(
    agent: Player,
    make_env: Callable[[int], VectorEnv],
    episodes: int = 30,
    repeats: int = 5,
    greedy: bool = True,
    seed: int = 1,
    max_episode_steps: int = 1_000_000,
    discard_negative: bool = False,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int, int], None] | None = None,
) -> Evaluation:
    """Play `episodes` consecutive episodes in each of `repeats` environments.

    Every environment plays its own fixed number of episodes: taking whichever episodes end first would
    favour short ones. `make_env(n)` gives a vector environment of n rows that restarts episodes in the same
    step; it is closed at the end. An episode is what lies between two `done`s of the environment: a life
    under some protocols, a game under others.

    discard_negative: leave out episodes with a negative return and play others for them.
    progress: called after every step with the episodes played and to play, and the steps played.

    Raises RunError if an episode goes on for more than `max_episode_steps` agent steps.
    """
    env = make_env(repeats)
    rows = [_Row() for _ in range(repeats)]
    result = Evaluation(episodes, repeats, _returns(rows, "life"), _returns(rows, "game"))
    generator = torch.Generator(device).manual_seed(seed)
    try:
        observation, _ = env.reset(seed=seed)
        reward = torch.zeros(repeats, device=device)
        done = torch.ones(repeats, dtype=torch.bool, device=device)
        state = agent.initial_state(repeats, device)
        active = np.full(repeats, episodes > 0)
        while active.any():
            frame = torch.from_numpy(observation).to(device)
            with torch.inference_mode():
                output, state = agent.act(frame, reward, done, state, greedy, generator)
            observation, rewards, terminated, truncated, infos = env.step(output.action.cpu().numpy())
            over = terminated | truncated
            reward = torch.from_numpy(np.asarray(rewards, np.float32)).to(device)
            done = torch.from_numpy(over).to(device)

            wraps = _array(infos, "score_wraps", repeats)
            result.steps += int(active.sum())
            result.score_wraps += int(wraps[active].sum())
            for index in np.flatnonzero(active):
                row = rows[index]
                row.episode_steps += 1
                row.wrapped |= bool(wraps[index])
                if row.episode_steps > max_episode_steps:
                    raise RunError(
                        f"an episode of repeat {index + 1} went past {max_episode_steps:,} agent steps; "
                        "the agent may wait for ever, evaluate under a protocol with a time limit or "
                        "raise --max-episode-steps"
                    )
                if not over[index]:
                    continue
                _finish_episode(row, infos, int(index), discard_negative, result)
                discarded = result.discarded_negative + result.discarded_wrapped
                if discarded > 10 * episodes * repeats:
                    raise RunError(f"{discarded} episodes had no valid return; the score is not measurable")
                active[index] = len(row.life_returns) < episodes
            if progress is not None:
                progress(sum(len(row.life_returns) for row in rows), episodes * repeats, result.steps)
    finally:
        env.close()
    return result


def _finish_episode(
    row: _Row, infos: dict[str, Any], index: int, discard_negative: bool, result: Evaluation
) -> None:
    """Take down what ended in this step: an episode, and maybe the game."""
    if infos["_game_return"][index]:
        row.game_returns.append(float(infos["game_return"][index]))
        row.game_lengths.append(int(infos["game_length"][index]))
    if infos["_life_return"][index]:
        value = float(infos["life_return"][index])
        if discard_negative and value < 0:
            result.discarded_negative += 1
        else:
            row.life_returns.append(value)
            row.life_lengths.append(int(infos["life_length"][index]))
    elif row.wrapped:
        result.discarded_wrapped += 1
    # Otherwise the agent never acted in it (the life was lost while buttons were pressed for it).
    row.episode_steps, row.wrapped = 0, False


def _returns(rows: list[_Row], kind: str) -> Returns:
    """The rows' own lists, so that they fill as the rows do."""
    return Returns(
        [getattr(row, f"{kind}_returns") for row in rows], [getattr(row, f"{kind}_lengths") for row in rows]
    )


def _array(infos: dict[str, Any], key: str, size: int) -> NDArray[Any]:
    return np.asarray(infos[key]) if key in infos else np.zeros(size, np.int64)
