"""The actor: steps its environments with the current policy and records unrolls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from ..cores import State
from .action_log import ActionLog
from .cuda.frame_feed import FrameFeed
from .cuda.graphs import CapturedAct
from .network import Agent, AgentOutput
from .stopwatch import Stopwatch
from .unroll import Episodes, Unroll
from .weights import Weights


class Actor:
    """One vector environment, one copy of the agent, and the recurrent state between unrolls.

    The environment must restart finished episodes in the same step (Gymnasium's SAME_STEP), so that the
    observation returned with `done` is the first of the next episode.
    """

    def __init__(
        self,
        env: VectorEnv,
        agent: Agent,
        weights: Weights,
        unroll_length: int,
        seed: int,
        deterministic: bool = False,
    ) -> None:
        self.env = ActionLog(env) if deterministic else env
        self.agent = agent
        self.weights = weights
        self.unroll_length = unroll_length
        self.stopwatch = Stopwatch()
        self._device = agent.policy.weight.device
        self._feed = FrameFeed(self._device) if self._device.type == "cuda" else None
        self._seed = seed
        self._unrolls = 0
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._captured: CapturedAct | None = None
        self._deterministic = deterministic
        self._frame: Tensor
        self._reward: Tensor
        self._done: Tensor
        self._state: State
        self._reset()

    @property
    def num_envs(self) -> int:
        return int(self.env.num_envs)

    def collect(self) -> Unroll:
        """The next unroll, acted with the newest weights."""
        version = self.weights.pull(self.agent)
        T, B = self.unroll_length, self.num_envs
        frames = torch.empty((T + 1, B, *self._frame.shape[1:]), dtype=self._frame.dtype, device=self._device)
        rewards = torch.empty((T + 1, B), device=self._device)
        dones = torch.empty((T + 1, B), dtype=torch.bool, device=self._device)
        actions = torch.empty((T, B), dtype=torch.int64, device=self._device)
        logits = torch.empty((T, B, self.agent.spec.num_actions), device=self._device)
        forced = torch.zeros((T, B), dtype=torch.bool, device=self._device)
        initial_state = self._state
        episodes = Episodes()
        score_wraps = 0

        with self.agent.at_rest():
            for t in range(T):
                frames[t], rewards[t], dones[t] = self._frame, self._reward, self._done
                with self.stopwatch("inference"), torch.no_grad():
                    output, self._state = self.act(frames[t], rewards[t], dones[t], self._state)
                    actions[t], logits[t] = output.action, output.policy_logits
                    chosen = output.action.cpu().numpy()
                with self.stopwatch("emulation"):
                    frame, reward, terminated, truncated, info = self.env.step(chosen)
                self._frame = self._observe(frame)
                self._reward = torch.from_numpy(np.asarray(reward, dtype=np.float32))
                self._done = torch.from_numpy(terminated | truncated)
                if "forced" in info:
                    forced[t] = torch.from_numpy(info["forced"])
                score_wraps += _record(info, episodes)
        frames[T], rewards[T], dones[T] = self._frame, self._reward, self._done
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the learner reads on another stream
        self._unrolls += 1
        return Unroll(
            frames,
            rewards,
            dones,
            actions,
            logits,
            forced,
            initial_state,
            version,
            Episodes(episodes.life_returns, episodes.game_returns, episodes.game_lengths, score_wraps),
        )

    def act(self, frame: Tensor, reward: Tensor, done: Tensor, state: State) -> tuple[AgentOutput, State]:
        """`Agent.act`, sampling; on a GPU in one CUDA graph."""
        if self._device.type != "cuda" or self._deterministic:
            return self.agent.act(frame, reward, done, state, generator=self._generator)
        if self._captured is None:
            self._captured = CapturedAct(self.agent, frame, reward, done, state, self._generator)
        return self._captured(frame, reward, done, state)

    @property
    def bytes_to_device(self) -> int:
        """Of observations, so far; nothing crosses a bus where the agent is on the CPU."""
        return 0 if self._feed is None else self._feed.bytes

    def _observe(self, frame: NDArray[Any]) -> Tensor:
        return torch.from_numpy(frame) if self._feed is None else self._feed(frame)

    def _reset(self) -> None:
        """Begin new episodes everywhere, from a seed that follows from the actor's and its progress."""
        seed = int(np.random.SeedSequence([self._seed, self._unrolls]).generate_state(1)[0] >> 1)
        frame, _ = self.env.reset(seed=seed)
        self._frame = self._observe(frame)
        self._reward = torch.zeros(self.num_envs)
        self._done = torch.ones(self.num_envs, dtype=torch.bool)
        self._state = self.agent.initial_state(self.num_envs)

    def state_dict(self) -> dict[str, Any]:
        """Between two unrolls: RNG and progress; in deterministic mode all that decides the next unroll."""
        state: dict[str, Any] = {"generator": self._generator.get_state(), "unrolls": self._unrolls}
        if isinstance(self.env, ActionLog):
            state |= {
                "env": self.env.state_dict(),
                "frame": self._frame.cpu().clone(),
                "reward": self._reward.clone(),
                "done": self._done.clone(),
                "core": [part.cpu().clone() for part in self._state],
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`. Outside deterministic mode the environments begin new episodes.

        Raises RuntimeError if an environment does not repeat itself.
        """
        self._generator.set_state(state["generator"])
        self._unrolls = state["unrolls"]
        if not isinstance(self.env, ActionLog):
            self._reset()
            return
        frame = self.env.replay(state["env"])
        if not torch.equal(torch.from_numpy(frame), state["frame"]):
            raise RuntimeError(
                "the environment did not repeat itself from its seed and actions: "
                "it is not deterministic, resume without --deterministic"
            )
        self._frame = self._observe(frame)
        self._reward, self._done = state["reward"], state["done"]
        self._state = tuple(part.to(self._device) for part in state["core"])


def _record(info: Mapping[str, Any], episodes: Episodes) -> int:
    """Add the episodes that ended in this step; returns the score wraps counted in it."""
    episodes.life_returns.extend(_ended(info, "life_return"))
    episodes.game_returns.extend(_ended(info, "game_return"))
    episodes.game_lengths.extend(_ended(info, "game_length"))
    return int(info["score_wraps"].sum()) if "score_wraps" in info else 0


def _ended(info: Mapping[str, Any], key: str) -> list[Any]:
    mask: NDArray[np.bool_] | None = info.get(f"_{key}")
    if mask is None or not mask.any():
        return []
    return list(info[key][mask].tolist())


def make_actor_agent(agent: Agent) -> Agent:
    """An actor's own copy of the agent: same architecture and precision, weights to be pulled."""
    copy = Agent(agent.spec).to(agent.policy.weight.device)
    copy.autocast_dtype = agent.autocast_dtype
    return copy
