"""Inference on a CPU: steps in C as far as possible, activations cached for a learner in the same thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...cores import State
from ...kernels.native.weight_transforms import start_transform_cache
from ..inference import EagerInference, TimeStep
from ..network import AgentOutput
from ..sampling import Rng
from ..unroll import Unroll
from .agent import FastAgent
from .fused_actor import FusedActor, make_fused_actor


class FastInference(EagerInference):
    """Runs a `FastAgent`."""

    def __init__(self, fast: FastAgent, rng: Rng) -> None:
        super().__init__(fast.agent, rng)
        self._fast = fast
        self._fused: FusedActor | None = None
        self._buffers: tuple[Any, ...] = ()
        """NumPy views of the current unroll's observation, reward and done."""

    def without_cache(self) -> FastInference:
        """Return another that caches nothing for the learner."""
        return FastInference(FastAgent(self._fast.agent, self._fast.parts), self._rng)

    def record(self, unroll: Unroll, t: int, timestep: TimeStep) -> None:
        for buffer, value in zip(self._buffers, timestep, strict=True):
            buffer[t] = value

    @contextmanager
    def constant_weights(self) -> Iterator[None]:
        start_transform_cache()  # empty: another process may have changed the weights in shared memory
        # Autocast caches its casts of weights until its outermost context ends.
        with torch.autocast("cpu", enabled=False):
            yield

    def start_unroll(self, unroll: Unroll) -> None:
        # NumPy copies small arrays in a third of the time.
        self._buffers = unroll.observation.numpy(), unroll.reward.numpy(), unroll.done.numpy()
        self._fast.start_unroll(unroll)
        self._fused = make_fused_actor(self._fast, unroll, self._rng)

    def select_actions(self, unroll: Unroll, t: int) -> None:
        if self._fused is not None:
            self._fused.act(t)
        else:
            super().select_actions(unroll, t)

    def act(self, observation: Tensor, reward: Tensor, done: Tensor) -> tuple[AgentOutput, State]:
        return self._fast.act(observation, reward, done, self.state, generator=self._rng)

    def finish_unroll(self, unroll: Unroll) -> None:
        if self._fused is not None:
            self.state = self._fused.state
            self._fused.finish()
        elif any(self._fast.cache_spec):
            # The learner evaluates the last observation, too; no gradient reaches that.
            features = self._fast.compute_and_cache_trunk(unroll.observation[-1], differentiable=False)
            x = self._fast.core_input(features, unroll.reward[-1])
            self._fast.core_step(x, self.state, unroll.done[-1])
        self._fused = None
        self._fast.cache.seal()
