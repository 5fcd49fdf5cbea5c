"""Run an actor's agent, on the CPU or on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores import State
from .cuda.inference import GpuInference
from .known import UNKNOWN, Known
from .network import Agent, AgentOutput
from .noise import Noise
from .steps import Steps, prepare
from .unroll import Unroll

Seen = tuple[Any, Any, Any]
"""Observations, rewards and marks of new episodes, as `Inference.observe` returns them."""


class Keep(NamedTuple):
    """Which parts of `Known` to keep."""

    trunk: bool = False
    projection: bool = False
    core: bool = False


NOTHING = Keep()


class Inference(Protocol):
    """An agent as its actor sees it."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of observations that have crossed a bus so far."""
        ...

    def observe(self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]) -> Seen:
        """Bring what the environments answered, `[B, ...]` each, to where the agent is."""
        ...

    def rooms(self, unroll: Unroll) -> Seen:
        """Return where an unroll keeps what is observed before its step t: `rooms[i][t] = seen[i]`."""
        ...

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        """Do as `Agent.act`, with actions sampled."""
        ...

    def begin(self, unroll: Unroll) -> Steps | None:
        """Begin an unroll that is to be filled; return what acts in it, None where `act` does."""
        ...

    def finish(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> Known:
        """End an unroll with what follows it: wait until another thread can read all that was recorded, and
        return what is known of its steps."""
        ...


class DirectInference:
    """On the CPU: nothing to bring, nothing to wait for."""

    bytes_sent = 0

    def __init__(self, agent: Agent, noise: Noise) -> None:
        self._agent = agent
        self._noise = noise

    def observe(self, observation: NDArray[Any], reward: NDArray[Any], done: NDArray[Any]) -> Seen:
        return observation, reward, done

    def rooms(self, unroll: Unroll) -> Seen:
        # Small arrays are copied by NumPy in a third of the time.
        return unroll.observation.numpy(), unroll.reward.numpy(), unroll.done.numpy()

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        return self._agent.act(observation, reward, done, state, generator=self._noise)

    def begin(self, unroll: Unroll) -> Steps | None:
        return None

    def finish(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> Known:
        return UNKNOWN


class KeepingInference(DirectInference):
    """On the CPU, by the learner's own agent: keeps what it computed, and how, for the learner."""

    def __init__(self, agent: Agent, noise: Noise, keep: Keep) -> None:
        super().__init__(agent, noise)
        self._keep = keep
        self._known = UNKNOWN
        self._steps: Steps | None = None

    def begin(self, unroll: Unroll) -> Steps | None:
        sizes = unroll.done.shape
        self._known = Known(
            projection=self._agent.new_kept_projection(*sizes) if self._keep.projection else None,
            core=self._agent.core.new_kept(*sizes) if self._keep.core else None,
        )
        self._steps = prepare(self._agent, unroll, self._known, self._noise)
        return self._steps

    def act(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State
    ) -> tuple[AgentOutput, State]:
        with torch.set_grad_enabled(self._keep.trunk):
            features = self._agent.trunk_features(observation)
        self._add_trunk(features)
        return self._agent.act_on(
            features.detach(), reward, done, state, generator=self._noise, known=self._known
        )

    def finish(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> Known:
        if self._steps is not None:
            self._steps.finish()
        else:
            self._observe(observation, reward, done, state)
        known, self._known, self._steps = self._known, UNKNOWN, None
        return known

    def _observe(self, observation: Tensor, reward: Tensor, done: Tensor, state: State) -> None:
        # No gradient reaches the bootstrap value.
        features = self._agent.trunk_features(observation)
        self._add_trunk(features)
        known = self._known
        if known.projection or known.core:
            x = self._agent.core_input(features, reward, known.projection)
            if known.core:
                self._agent.core.keeping_step(x, state, done, known.core)

    def _add_trunk(self, features: Tensor) -> None:
        if self._keep.trunk:
            self._known = self._known._replace(trunk=(*self._known.trunk, features))


def make_inference(agent: Agent, noise: Noise, deterministic: bool, keep: Keep) -> Inference:
    """Choose by the agent's device; `noise` chooses the actions."""
    if any(keep):
        return KeepingInference(agent, noise, keep)
    if agent.policy.weight.device.type == "cuda":
        assert isinstance(noise, torch.Generator), "a GPU is not shared by processes"
        # Capturing draws random numbers, so a resumed run would not repeat what came before.
        return GpuInference(agent, noise, capture=not deterministic)
    return DirectInference(agent, noise)
