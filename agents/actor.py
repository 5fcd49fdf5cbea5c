"""The actor: steps its environments with the current policy and records unrolls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from .action_log import ActionLog, Step
from .inference import EagerInference, InferenceFactory, TimeStep
from .masks import forbid
from .network import Agent
from .returns import Returns
from .sampling import EnvShard, ShardedRng, sample
from .stopwatch import Stopwatch, timed
from .truncations import Truncations, join_truncations
from .unroll import Unroll
from .weights import Weights


class Actor:
    """One vector environment, the agent that acts in it, and the recurrent state between unrolls.

    The environment must restart finished episodes in the same step (Gymnasium's SAME_STEP), so that the
    observation returned with `done` is the first of the next episode. The other modes are adapted
    (envs/autoreset.py).
    """

    def __init__(
        self,
        env: VectorEnv,
        agent: Agent,
        weights: Weights,
        unroll_length: int,
        seed: int,
        deterministic: bool = False,
        inference: InferenceFactory = EagerInference,
        env_shard: EnvShard | None = None,
        discount: float | None = None,
        first_env: int = 0,
    ) -> None:
        """Reset the environments.

        Args:
            env: B environments.
            agent: the actor's own copy; the learner's agent where both take turns on a CPU.
            weights: the source from which `collect` pulls the newest weights.
            unroll_length: T.
            seed: seeds environments and action sampling.
            deterministic: whether actions are logged, so that `load_state_dict` can replay them.
            inference: factory of what runs the agent (inference.py).
            env_shard: which of a run's environments these are, where several processes share them under one
                `seed`; None if they are all.
            discount: γ of the returns whose moments `--normalise-rewards` needs; None disables them.
            first_env: number of its first environment in `Unroll.origin`, where a learner has several actors.
        """
        self.env = ActionLog(env) if deterministic else env
        self.agent = agent
        self.weights = weights
        self.unroll_length = unroll_length
        self.stopwatch = Stopwatch()
        self._seed = seed
        self._unrolls = 0
        """Number of unrolls collected."""
        self._env_numbers = torch.arange(first_env, first_env + env.num_envs)
        self._generator = torch.Generator(agent.policy.weight.device).manual_seed(seed)
        self._rng = ShardedRng(self._generator, env_shard) if env_shard else self._generator
        self.inference = inference(agent, self._rng)
        self._timestep: TimeStep
        """Observation, reward and done that the next step reads."""
        self._allowed: NDArray[np.bool_] | None
        """Actions that the environment allows in the next step, bool `[B, A]`; None if all."""
        self._noted_clip = False
        self._returns = None if discount is None else Returns(env.num_envs, discount)
        self._truncated: list[Truncations] = []
        """Truncations of the current unroll so far, one entry per step that has any."""
        self._reset()

    @property
    def num_envs(self) -> int:
        return int(self.env.num_envs)

    @property
    def observation(self) -> NDArray[Any]:
        """Observation that the next step reads, `[B, ...]`."""
        observation: NDArray[Any] = self._timestep.observation
        return observation

    def set_inference(self, inference: InferenceFactory) -> None:
        """Replace the agent's inference from the next unroll on."""
        state = self.inference.state
        self.inference = inference(self.agent, self._rng)
        self.inference.state = state

    @torch.no_grad()
    def collect(self) -> Unroll:
        """Act for `unroll_length` steps with the newest weights and return what happened."""
        version = self.weights.pull(self.agent)
        T, num_actions = self.unroll_length, self.agent.spec.num_actions
        observation = torch.as_tensor(self._timestep.observation)
        unroll = Unroll.empty(T, observation, num_actions, self.inference.state, version)
        self._truncated.clear()
        with self.inference.constant_weights():
            with self.stopwatch("inference"):
                self.inference.start_unroll(unroll)
            for t in range(T):
                self.inference.record(unroll, t, self._timestep)
                self._step_env(unroll, t, self._select_actions(unroll, t))
            self.inference.record(unroll, T, self._timestep)
            with self.stopwatch("inference"):
                self.inference.finish_unroll(unroll)
        origin = torch.stack([self._env_numbers, torch.full_like(self._env_numbers, self._unrolls)], 1)
        self._unrolls += 1
        if self._returns is not None:
            unroll.episodes.return_moments.append(self._returns.pop_moments())
        truncations = join_truncations((0, truncated) for truncated in self._truncated)
        return replace(unroll, truncations=truncations, origin=origin)

    @timed("inference")
    def _select_actions(self, unroll: Unroll, t: int) -> NDArray[np.int64]:
        self.inference.select_actions(unroll, t)
        if self._allowed is not None:
            self._resample_allowed(unroll, t, torch.from_numpy(self._allowed))
        return unroll.action[t].cpu().numpy()

    def _resample_allowed(self, unroll: Unroll, t: int, allowed: Tensor) -> None:
        """Resample from the masked policy: inference ignores masks."""
        logits = forbid(unroll.behavior_logits[t], allowed.to(unroll.action.device))
        unroll.behavior_logits[t], unroll.action[t] = logits, sample(logits, self._rng)

    def _step_env(self, unroll: Unroll, t: int, actions: NDArray[np.int64]) -> None:
        """Step the environments; the result is stored for step t + 1."""
        observation, reward, terminated, truncated, info = self._step(actions)
        rewards = np.asarray(reward, dtype=np.float32)
        done = terminated | truncated
        self._timestep = self.inference.to_device(observation, rewards, done)
        if self._returns is not None:
            self._returns.add(rewards, done)
        self._note_clipped(rewards, unroll)
        self._allowed = info.get("action_mask")
        if np.count_nonzero(info.get("forced", 0)):
            unroll.forced[t] = torch.from_numpy(info["forced"])
        if np.count_nonzero(info.get("_final_obs", 0)):
            self._truncated.append(_truncations(t, info, unroll.observation.device))
        unroll.episodes.record(info)

    @timed("emulation")
    def _step(self, actions: NDArray[np.int64]) -> Step:
        return self.env.step(actions)

    def _note_clipped(self, rewards: NDArray[np.float32], unroll: Unroll) -> None:
        """Warn once when a reward is clipped; the run deduplicates the notes of several processes."""
        scale, clip = self.agent.spec.reward_scale, self.agent.spec.reward_clip
        if not clip or self._noted_clip:
            return
        if np.abs(rewards).max() * scale > clip:
            self._noted_clip = True
            # Under `normalise_rewards` the loss divides rewards before it clips them, the core does not.
            where = "for training" if self._returns is None else "in the core's input"
            unroll.episodes.notes.append(
                f"rewards beyond ±{clip / scale:g} are clipped {where} (--reward-clip); "
                "logged returns are unclipped"
            )

    def _reset(self) -> None:
        """Begin new episodes everywhere, from a seed derived from the actor's seed and unroll count."""
        seed = int(np.random.SeedSequence([self._seed, self._unrolls]).generate_state(1)[0] >> 1)
        observation, info = self.env.reset(seed=seed)
        self._allowed = info.get("action_mask")
        reward, done = np.zeros(self.num_envs, np.float32), np.ones(self.num_envs, bool)
        self._timestep = self.inference.to_device(observation, reward, done)
        self.inference.state = self.agent.initial_state(self.num_envs)
        if self._returns is not None:
            self._returns.current[:] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return RNG and progress, in deterministic mode everything that the next unroll depends on.

        Call between unrolls.
        """
        state: dict[str, Any] = {"generator": self._generator.get_state(), "unrolls": self._unrolls}
        if isinstance(self.env, ActionLog):
            frame, reward, done = (torch.as_tensor(x).cpu().clone() for x in self._timestep)
            state |= {
                "env": self.env.state_dict(),
                "frame": frame,  # the observation, under the name that checkpoints have for it
                "reward": reward,
                "done": done,
                "core": [part.cpu().clone() for part in self.inference.state],
            }
            if self._allowed is not None:
                state["allowed"] = torch.from_numpy(self._allowed.copy())
            if self._returns is not None:
                state["returns"] = torch.from_numpy(self._returns.current.copy())
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
        observation = self.env.replay(state["env"])
        if not torch.equal(torch.from_numpy(observation), state["frame"]):
            raise RuntimeError(
                "the environment did not repeat itself from its seed and actions: "
                "it is not deterministic (does it draw from np.random or random, not self.np_random?), "
                "resume without --deterministic"
            )
        reward, done = state["reward"].numpy(), state["done"].numpy()
        self._timestep = self.inference.to_device(observation, reward, done)
        self._allowed = state["allowed"].numpy() if "allowed" in state else None
        self.inference.state = tuple(part.to(self._generator.device) for part in state["core"])
        if self._returns is not None and "returns" in state:
            self._returns.current = state["returns"].numpy()


def _truncations(t: int, info: Mapping[str, Any], device: torch.device) -> Truncations:
    """Return the episodes truncated at step t, by `info` of a step.

    Environments of `make_vector_env` set `final_obs` only where an episode was truncated and did not
    terminate, unlike Gymnasium's own (envs/README.md).
    """
    envs = np.flatnonzero(info["_final_obs"])
    observation = torch.from_numpy(info["final_obs"][envs]).to(device)
    return Truncations(torch.full((len(envs),), t), torch.from_numpy(envs), observation)


def make_actor_agent(agent: Agent) -> Agent:
    """Make an actor's own copy of the agent: same architecture and precision, weights to be pulled."""
    copy = Agent(agent.spec).to(agent.policy.weight.device)
    copy.autocast_dtype = agent.autocast_dtype
    return copy
