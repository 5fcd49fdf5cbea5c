"""An evaluation equals a plain transcription of its protocol: one game, one emulator, one agent, one loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from reference_atari import ReferenceGame

from deltabeast.agents import Agent, AgentSpec
from deltabeast.envs import make_vector_env
from deltabeast.envs.checks import environment_seeds
from deltabeast.launch.evaluation.evaluate import evaluate

REPEATS = 2
PROTOCOLS: dict[str, dict[str, Any]] = {
    "paper-code": {},
    "ale-standard": {"sticky": 0.25, "life_ends_episode": False, "press_fire": False, "repeat_first": False},
}


class SeenGame(ReferenceGame):
    """Keeps the screens inside a reset: our agent sees these steps, though it does not choose in them."""

    hidden: list[np.ndarray]

    def noop_reset(self) -> np.ndarray:
        screen = super().noop_reset()
        self.hidden.append(screen)
        return screen

    def skip_step(self, action: int) -> tuple[np.ndarray, float, bool]:
        result = super().skip_step(action)
        self.hidden.append(result[0])
        return result


def transcribe(
    game: str, agent: Agent, episodes: int, seed: int, noops: Sequence[list[int]], rules: dict[str, Any]
) -> tuple[list[float], list[int], list[float], list[int]]:
    """Consecutive episodes: returns and lengths of the agent's episodes, and of the games among them."""
    world = SeenGame(game, seed=seed, **rules)
    world.noops.extend(noops)
    returns, lengths, game_returns, game_lengths = [], [], [], []
    game_return, game_length, reward = 0.0, 0, 0.0
    lost_life: list[np.ndarray] = []
    with torch.no_grad():
        while len(returns) < episodes:
            world.hidden = lost_life
            frame = world.reset()
            state = agent.initial_state(REPEATS)
            for screen in world.hidden[:-1]:
                stack = np.stack([world.warp(screen)] * 4)
                _, state = agent.act(*observed(stack, reward), state, greedy=True)
                reward = 0.0
            episode_return, length, done = 0.0, 0, False
            while not done:
                output, state = agent.act(*observed(frame, reward), state, greedy=True)
                frame, reward, done = world.step(int(output.action[0]))
                episode_return, length = episode_return + reward, length + 1
            returns.append(episode_return)
            lengths.append(length)
            game_return, game_length = game_return + episode_return, game_length + length
            lost_life = [world.hidden[-1]]
            if world.game_really_over:
                game_returns.append(game_return)
                game_lengths.append(game_length)
                game_return, game_length, lost_life = 0.0, 0, []
    return returns, lengths, game_returns, game_lengths


def observed(frame: np.ndarray, reward: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a batch sees in every row; its state is begun anew by hand, so nothing is done.

    As many rows as are evaluated side by side: those of another number are rounded otherwise, and where two
    actions are all but equally good the games part.
    """
    rows = torch.from_numpy(frame.astype(np.uint8)).expand(REPEATS, -1, -1, -1).contiguous()
    return rows, torch.full((REPEATS,), reward), torch.zeros(REPEATS, dtype=torch.bool)


class NotingNoops:
    """An environment that notes, for every row, how many frames each of its games waited at the start.

    ALE draws the number, and where it drew none it is asked again (1 game in 31): a game of 0 frames.
    """

    def __init__(self, env: Any) -> None:
        # Without masks a row in which an agent stands for too long is over; the next agent is tried then.
        self.env, self.metadata = env, {**env.metadata, "reset_mask": False}
        self.noops: list[list[list[int]]] = [[] for _ in range(env.num_envs)]
        self.again = np.zeros(env.num_envs, int)
        self._reset_ale = env._ale.reset
        env._ale.reset = self._ask_again
        self.step_env, env.step = env.step, self.step

    def _ask_again(self, *, options: Any = None, **kwargs: Any) -> Any:
        if options is not None:
            self.again += options["reset_mask"]
        return self._reset_ale(options=options, **kwargs)

    def begin(self, rows: np.ndarray, frames: np.ndarray) -> None:
        for row in np.flatnonzero(rows):
            self.noops[row].append([0] * int(self.again[row]) + [int(frames[row])])
            self.again[row] = 0

    def reset(self, *, seed: int) -> Any:
        obs, infos = self.env.reset(seed=seed)
        self.frames = infos["game_frames"]
        self.begin(np.ones(self.env.num_envs, bool), self.frames)
        return obs, infos

    def step(self, actions: Any) -> Any:
        result = self.step_env(actions)
        frames = result[-1]["game_frames"]
        self.begin(frames < self.frames, frames)
        self.frames = frames
        return result

    def close(self) -> None:
        self.env.close()


def make_agent(game: str) -> Agent:
    """Small, recurrent, and moved by what it sees and is paid: no action is the best one on average."""
    env = make_vector_env(game, num_envs=1, full_action_set=False)
    actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
    options = {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "ff_size": 16}
    agent = Agent(AgentSpec((4, 84, 84), actions, "rdn", "nature", options, game=game)).eval()
    frames = [env.reset(seed=1)[0]] + [env.step(np.array([n % actions]))[0] for n in range(150)]
    env.close()
    with torch.no_grad():
        agent.stem.fc.weight.mul_(5.0)  # type: ignore[union-attr, operator]
        agent.core.input_proj.weight[:, -1].mul_(10.0)  # type: ignore[index, union-attr]
        done = torch.zeros(len(frames), 1, dtype=torch.bool)
        seen = torch.from_numpy(np.stack(frames)), done.float(), done, agent.initial_state(1)
        agent.policy.bias.sub_(agent.unroll(*seen)[0].policy_logits[50:].mean((0, 1)))
    return agent


# With FIRE and lives, soon lost in Road Runner, more episodes than a game has; without FIRE; with FIRE and
# without lives.
@pytest.mark.parametrize(
    ("game", "protocol", "episodes"),
    [
        ("road_runner", "paper-code", 4),
        pytest.param("space_invaders", "paper-code", 4, marks=pytest.mark.long),
        pytest.param("ms_pacman", "paper-code", 4, marks=pytest.mark.long),
        pytest.param("pong", "paper-code", 1, marks=pytest.mark.long),
        ("road_runner", "ale-standard", 1),
        pytest.param("space_invaders", "ale-standard", 1, marks=pytest.mark.long),
    ],
)
def test_episode_by_episode(game: str, protocol: str, episodes: int, seed: int) -> None:
    seed %= 10**6
    noting: list[NotingNoops] = []

    def make(count: int) -> Any:
        env = make_vector_env(game, num_envs=count, protocol=protocol, num_threads=1, full_action_set=False)
        noting.append(NotingNoops(env))
        return noting[-1]

    for _ in range(3):  # one agent in many stands where it loses no life
        noting.clear()
        seed += 1
        torch.manual_seed(seed)
        agent = make_agent(game)
        result = evaluate(agent, make, episodes, REPEATS, seed=seed, max_episode_steps=4_000)
        if not result.missing:
            break
    assert not result.missing
    for row in range(REPEATS):
        row_seed = int(environment_seeds(seed, REPEATS)[row])
        expected = transcribe(game, agent, episodes, row_seed, noting[0].noops[row], PROTOCOLS[protocol])
        life, games = result.life, result.game
        ours = life.returns[row], life.lengths[row], games.returns[row], games.lengths[row]
        assert ours == expected, f"row {row}"
