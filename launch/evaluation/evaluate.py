"""Playing a fixed number of episodes with an agent, and the statistics of its returns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from ...agents import AgentOutput
from ...cores import State
from ...envs.checks import environment_seeds
from ..errors import RunError
from .bootstrap import bootstrap_interval
from .processes import play_side_by_side


class Player(Protocol):
    """What can be evaluated: an agent, or something that acts like one."""

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State: ...

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State, greedy: bool = False
    ) -> tuple[AgentOutput, State]: ...


class RandomAgent:
    """Gives every action the same probability: sampled, it plays for the score that training starts from."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return ()

    def act(
        self,
        observation: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
    ) -> tuple[AgentOutput, State]:
        logits = torch.zeros(len(reward), self.num_actions, device=reward.device)
        return AgentOutput(logits.argmax(-1), logits, logits[:, 0]), state


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

    index: int
    seed: int
    random: np.random.Generator
    """what its actions are drawn with: the same whichever rows play beside it"""
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
    processes: int = 1,
) -> Evaluation:
    """Play `episodes` consecutive episodes in each of `repeats` environments.

    Every environment plays its own fixed number of episodes: taking whichever episodes end first would
    favour short ones. `make_env(n)` gives a vector environment of n rows that restarts episodes in the same
    step; it is closed at the end. An episode is what lies between two `done`s of the environment: a life
    under some protocols, a game under others.

    discard_negative: leave out episodes with a negative return and play others for them.
    progress: called now and then with the episodes played and to play, and the steps played.
    processes: share the environments among so many, a core each: the same episodes, but for rounding. Agent
    and make_env must then be fit for pickling.

    Raises RunError if an episode goes on for more than `max_episode_steps` agent steps, or a process dies.
    """
    seeds = environment_seeds(seed, repeats).tolist()
    rows = [_Row(i, row_seed, np.random.default_rng([seed, i])) for i, row_seed in enumerate(seeds)]
    shares = np.array_split(np.arange(repeats), min(processes, repeats))
    parts = [Part([rows[i] for i in share], episodes) for share in shares]

    def tell(done: Sequence[int], steps: Sequence[int]) -> None:
        if progress is not None:
            progress(sum(done), episodes * repeats, sum(steps))

    game = Game(agent, make_env, greedy, max_episode_steps, discard_negative, device)
    if len(parts) == 1:
        parts[0].play(game, lambda done, steps: tell([done], [steps]))
    else:
        parts = play_side_by_side(game, parts, tell)
        rows = [row for part in parts for row in part.rows]
    return Evaluation(
        episodes,
        repeats,
        _returns(rows, "life"),
        _returns(rows, "game"),
        *(sum(getattr(part, name) for part in parts) for name in _COUNTS),
    )


_COUNTS = ("discarded_negative", "discarded_wrapped", "score_wraps", "steps")


@dataclass(frozen=True)
class Game:
    """Who plays what, and how."""

    agent: Player
    make_env: Callable[[int], VectorEnv]
    greedy: bool
    max_episode_steps: int
    discard_negative: bool
    device: torch.device | str


class Part:
    """The rows that one process plays, and what it counts."""

    def __init__(self, rows: list[_Row], episodes: int) -> None:
        self.rows, self.episodes = rows, episodes
        self.discarded_negative = self.discarded_wrapped = self.score_wraps = self.steps = 0

    @property
    def done(self) -> int:
        """Episodes that count so far."""
        return sum(len(row.life_returns) for row in self.rows)

    def play(self, game: Game, tell: Callable[[int, int], None]) -> None:
        """Play all episodes; tells episodes and steps played so far after each step."""
        count, agent, device = len(self.rows), game.agent, game.device
        env = game.make_env(count)
        try:
            observation, _ = env.reset(seed=[row.seed for row in self.rows])  # type: ignore[arg-type]
            reward = torch.zeros(count, device=device)
            done = torch.ones(count, dtype=torch.bool, device=device)
            state = agent.initial_state(count, device)
            active = np.full(count, self.episodes > 0)
            while active.any():
                seen = torch.from_numpy(observation).to(device)
                with torch.inference_mode():
                    output, state = agent.act(seen, reward, done, state, greedy=True)
                    actions = output.action.cpu().numpy() if game.greedy else self._draw(output.policy_logits)
                observation, rewards, terminated, truncated, infos = env.step(actions)
                over = terminated | truncated
                reward = torch.from_numpy(np.asarray(rewards, np.float32)).to(device)
                done = torch.from_numpy(over).to(device)

                wraps = _array(infos, "score_wraps", count)
                self.steps += int(active.sum())
                self.score_wraps += int(wraps[active].sum())
                for i in np.flatnonzero(active):
                    row = self.rows[i]
                    row.episode_steps += 1
                    row.wrapped |= bool(wraps[i])
                    if row.episode_steps > game.max_episode_steps:
                        raise RunError(
                            f"an episode of repeat {row.index + 1} went past {game.max_episode_steps:,} "
                            "agent steps; the agent may wait for ever, evaluate under a protocol with a time "
                            "limit or raise --max-episode-steps"
                        )
                    if not over[i]:
                        continue
                    self._finish_episode(row, infos, int(i), game.discard_negative)
                    discarded = self.discarded_negative + self.discarded_wrapped
                    if discarded > 10 * self.episodes * count:
                        raise RunError(
                            f"{discarded} episodes had no valid return; the score is not measurable"
                        )
                    active[i] = len(row.life_returns) < self.episodes
                tell(self.done, self.steps)
        finally:
            env.close()

    def _draw(self, logits: Tensor) -> NDArray[np.int64]:
        """Sampled actions, each row's with its own numbers: argmax of p_i / e_i with e_i ~ Exp(1)."""
        shares = logits.softmax(-1).cpu().numpy()
        race = np.stack([row.random.exponential(size=shares.shape[1]) for row in self.rows])
        return (shares / race).argmax(1)

    def _finish_episode(self, row: _Row, infos: dict[str, Any], i: int, discard_negative: bool) -> None:
        """Take down what ended in this step: an episode, and maybe the game."""
        if infos["_game_return"][i]:
            row.game_returns.append(float(infos["game_return"][i]))
            row.game_lengths.append(int(infos["game_length"][i]))
        if infos["_life_return"][i]:
            value = float(infos["life_return"][i])
            if discard_negative and value < 0:
                self.discarded_negative += 1
            else:
                row.life_returns.append(value)
                row.life_lengths.append(int(infos["life_length"][i]))
        elif row.wrapped:
            self.discarded_wrapped += 1
        # Otherwise the agent never acted in it (the life was lost while buttons were pressed for it).
        row.episode_steps, row.wrapped = 0, False


def _returns(rows: list[_Row], kind: str) -> Returns:
    """The rows' own lists, so that they fill as the rows do."""
    return Returns(
        [getattr(row, f"{kind}_returns") for row in rows], [getattr(row, f"{kind}_lengths") for row in rows]
    )


def _array(infos: dict[str, Any], key: str, size: int) -> NDArray[Any]:
    return np.asarray(infos[key]) if key in infos else np.zeros(size, np.int64)
