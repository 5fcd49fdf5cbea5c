"""Play a fixed number of episodes in each of some environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from ...agents import AgentOutput
from ...agents.masks import forbid
from ...cores import State
from ..errors import RunError
from ..processes.supervision import slow


class Player(Protocol):
    """Anything that can be evaluated: an agent, or something that acts like one."""

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State: ...

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State, greedy: bool = False
    ) -> tuple[AgentOutput, State]: ...


@runtime_checkable
class SeededPlayer(Player, Protocol):
    """A player that draws random numbers of its own."""

    def seed(self, seeds: Sequence[int]) -> None:
        """Draw those of each row from a generator with its seed."""


class RandomAgent:
    """Gives every action the same probability: sampled, it plays for the score that training starts from."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return ()

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State, greedy: bool = False
    ) -> tuple[AgentOutput, State]:
        logits = torch.zeros(len(reward), self.num_actions, device=reward.device)
        return AgentOutput(logits.argmax(-1), logits, logits[:, 0]), state


@dataclass
class Repeat:
    """One repeat: the episodes of its environment so far."""

    index: int
    seed: int
    random: np.random.Generator
    """generator of its actions: the same numbers whichever repeats play beside it"""
    life_returns: list[float] = field(default_factory=list)
    life_lengths: list[int] = field(default_factory=list)
    game_returns: list[float] = field(default_factory=list)
    game_lengths: list[int] = field(default_factory=list)
    episode_steps: int = 0
    wrapped: bool = False
    unfinished: int = 0
    """episodes that were too long and were aborted"""

    def give_up_episode(self) -> None:
        self.unfinished += 1
        self.episode_steps, self.wrapped = 0, False

    def goes_on(self, episodes: int, can_begin_anew: bool) -> bool:
        """Return whether another of its `episodes` is played.

        An agent may wait for ever in each, so a repeat stops once its unfinished episodes, if more than one,
        outnumber its finished ones; at the first one unless `can_begin_anew`.
        """
        ended = len(self.life_returns)
        lost = self.unfinished and not (can_begin_anew and self.unfinished <= max(1, ended))
        return ended + self.unfinished < episodes and not lost


@dataclass(frozen=True)
class Setup:
    """The player, its environments, and the rules of an evaluation."""

    player: Player
    make_env: Callable[[int], VectorEnv]
    greedy: bool
    max_episode_steps: int
    discard_negative: bool
    device: torch.device | str


class Repeats:
    """The repeats that one process plays, and its counts."""

    def __init__(self, rows: list[Repeat], episodes: int) -> None:
        self.rows, self.episodes = rows, episodes
        self.discarded_negative = self.discarded_wrapped = self.score_wraps = self.steps = 0
        self.notes: list[str] = []
        """messages of the environments to the user"""

    @property
    def unfinished(self) -> int:
        """Number of episodes that went on for too long."""
        return sum(row.unfinished for row in self.rows)

    @property
    def num_scored(self) -> int:
        """Number of episodes that count so far."""
        return sum(len(row.life_returns) for row in self.rows)

    def play(self, setup: Setup, tell: Callable[[int, int], None]) -> None:
        """Play all episodes; `tell` hears the episodes and steps played so far after each step."""
        count, player, device = len(self.rows), setup.player, setup.device
        env = setup.make_env(count)
        try:
            with slow("the environments' first reset"):
                observation, infos = env.reset(seed=[row.seed for row in self.rows])  # type: ignore[arg-type]
            reward = torch.zeros(count, device=device)
            done = torch.ones(count, dtype=torch.bool, device=device)
            state = player.initial_state(count, device)
            if isinstance(player, SeededPlayer):
                player.seed([row.seed for row in self.rows])
            active = np.full(count, self.episodes > 0)
            while active.any():
                seen = torch.from_numpy(observation).to(device)
                with torch.inference_mode():
                    output, state = player.act(seen, reward, done, state, greedy=True)
                    randoms = [row.random for row in self.rows]
                    actions = choose_actions(output, infos, setup.greedy, randoms)
                observation, rewards, terminated, truncated, infos = env.step(actions)
                self.notes.extend(infos.get("notes", ()))
                over = terminated | truncated
                wraps = _array(infos, "score_wraps", count)
                self.steps += int(active.sum())
                self.score_wraps += int(wraps[active].sum())
                stuck = np.zeros(count, bool)
                for i in np.flatnonzero(active):
                    row = self.rows[i]
                    row.episode_steps += 1
                    row.wrapped |= bool(wraps[i])
                    if over[i]:
                        self._finish_episode(row, infos, int(i), setup.discard_negative)
                    elif row.episode_steps >= setup.max_episode_steps:
                        row.give_up_episode()
                        stuck[i] = True
                    active[i] = row.goes_on(self.episodes, env.metadata.get("reset_mask", False))
                self._check_discarded(self.episodes * count)
                tell(self.num_scored, self.steps)
                if (stuck := stuck & active).any():
                    observation, infos = env.reset(options={"reset_mask": stuck})
                reward = torch.from_numpy(np.where(stuck, 0, rewards).astype(np.float32)).to(device)
                done = torch.from_numpy(over | stuck).to(device)
        finally:
            env.close()

    def _check_discarded(self, wanted: int) -> None:
        discarded = self.discarded_negative + self.discarded_wrapped
        if discarded > 10 * wanted:
            raise RunError(f"{discarded} episodes had no valid return; the score is not measurable")

    def _finish_episode(self, row: Repeat, infos: dict[str, Any], i: int, discard_negative: bool) -> None:
        """Record what ended in this step: an episode, and maybe the game."""
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


def choose_actions(
    output: AgentOutput, infos: dict[str, Any], greedy: bool, randoms: Sequence[np.random.Generator]
) -> NDArray[np.int64]:
    """Choose the likeliest of the actions that the environment allows, or draw one, for each row: `[B]`."""
    likeliest, logits = output.action, output.policy_logits
    if "action_mask" in infos:
        logits = forbid(logits, torch.from_numpy(infos["action_mask"]).to(logits.device))
        likeliest = logits.argmax(-1)
    return likeliest.cpu().numpy() if greedy else draw_actions(logits, randoms)


def draw_actions(logits: Tensor, randoms: Sequence[np.random.Generator]) -> NDArray[np.int64]:
    """Sample actions, each row with its own numbers: argmax of p_i / e_i with e_i ~ Exp(1)."""
    shares = logits.softmax(-1).cpu().numpy()
    exp_noise = np.stack([random.exponential(size=shares.shape[1]) for random in randoms])
    return (shares / exp_noise).argmax(1)


def _array(infos: dict[str, Any], key: str, size: int) -> NDArray[Any]:
    return np.asarray(infos[key]) if key in infos else np.zeros(size, np.int64)
