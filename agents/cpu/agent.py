"""An agent's functions in C on a CPU; each falls back on the eager one where C cannot compute it."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from ...cores import State, Stats
from ...kernels.native import dense
from ...kernels.native.weight_transforms import start_transform_cache
from ..network import Agent, AgentOutput, Bptt
from ..normaliser import Normaliser, PixelNormaliser
from ..sampling import Rng, exponential, sample
from ..unroll import Unroll
from . import stems
from .cache import NO_CACHE, ActivationCache, CacheSpec, joined_trunk
from .cores import CoreFunctions, functions_of
from .modules import is_hooked, weights_of

PARTS = ("trunk", "projection", "core", "heads")


class FastAgent:
    """Functions of an agent. `act` writes into `cache` what `unroll` then takes from it."""

    def __init__(
        self, agent: Agent, parts: Collection[str] = PARTS, cache_spec: CacheSpec = NO_CACHE
    ) -> None:
        """`parts` are those that C may compute, `cache_spec` says which activations of them are cached."""
        self.agent = agent
        unmodified = type(agent) is Agent and not is_hooked(agent)
        if agent.normaliser is not None:
            unmodified &= type(agent.normaliser) in (Normaliser, PixelNormaliser) and not is_hooked(
                agent.normaliser
            )
        self.parts = tuple(part for part in PARTS if unmodified and part in parts)
        self.cache_spec = CacheSpec(
            trunk=cache_spec.trunk if "trunk" in self.parts else 0,
            projection=cache_spec.projection and "projection" in self.parts,
            core=cache_spec.core and "core" in self.parts,
        )
        self.cache = ActivationCache()
        """Activations of the current unroll, or of the last one."""
        self._batch: list[ActivationCache] = []
        """Activations of the unrolls that make up the next batch, oldest first."""

    @property
    def has_own_unroll(self) -> bool:
        """Whether `unroll` differs from the eager one; its heads are always eager."""
        return self.parts not in ((), ("heads",))

    def _core(self) -> CoreFunctions | None:
        return functions_of(self.agent.core) if "core" in self.parts else None

    def start_unroll(self, unroll: Unroll) -> None:
        """Allocate the cache of its steps' activations."""
        agent, sizes, core = self.agent, unroll.done.shape, self._core()
        self.cache = ActivationCache(unroll if any(self.cache_spec) else None)
        self.cache.weights = self._versions()
        if self.cache_spec.projection and agent.autocast_dtype is None:
            self.cache.projection = stems.new_projection_cache(agent.stem, *sizes)
        if self.cache_spec.core and core is not None and core.new_cache is not None:
            self.cache.core = core.new_cache(agent.core, *sizes)
        self._batch = [*self._batch, self.cache][-max(1, self.cache_spec.trunk) :]

    def _versions(self) -> list[int]:
        return [weight._version for weight in self.agent.parameters()]

    def trunk_features(self, observation: Tensor) -> Tensor:
        """Like `Agent.trunk_features`."""
        agent = self.agent
        if "trunk" not in self.parts:
            return agent.trunk_features(observation)
        with agent.autocast():
            features = stems.trunk_features(agent.stem, agent.normaliser, observation)
        return agent.trunk_features(observation) if features is None else features

    def compute_and_cache_trunk(self, observation: Tensor, differentiable: bool = True) -> Tensor:
        """Compute a step's `trunk_features`; if `cache_spec` has them, cache them with their autograd graph.

        `differentiable=False` caches them without a graph. The result is detached.
        """
        with torch.set_grad_enabled(self.cache_spec.trunk > 0 and differentiable):
            features = self.trunk_features(observation)
        if self.cache_spec.trunk:
            self.cache.trunk.append(features)
        return features.detach()

    def core_input(self, features: Tensor, reward: Tensor) -> Tensor:
        """Like `Agent.core_input`, for a step."""
        agent = self.agent
        if "projection" in self.parts and agent.autocast_dtype is None:
            x = stems.core_input(agent.stem, features, agent.core_reward(reward), self.cache.projection)
            if x is not None:
                return x
        return agent.core_input(features, reward)

    def core_step(self, x: Tensor, state: State, done: Tensor) -> tuple[Tensor, State]:
        """Like `Core.step`."""
        core = self._core()
        result = core and core.step(self.agent.core, x, state, done, self.cache.core)
        return result or self.agent.core.step(x, state, done)

    def act(
        self,
        observation: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
        generator: Rng | None = None,
    ) -> tuple[AgentOutput, State]:
        """Like `Agent.act`."""
        x = self.core_input(self.compute_and_cache_trunk(observation), reward)
        y, state = self.core_step(x, state, done)
        output = _act(self.agent, y, greedy, generator) if "heads" in self.parts else None
        if output is None:
            logits, values = self.agent.heads(y)
            action = logits.argmax(-1) if greedy else sample(logits, generator)
            output = AgentOutput(action, logits, values)
        return output, state

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return self.agent.initial_state(batch_size, device)

    def unroll(self, agent: Agent, batch: Unroll, bptt: Bptt) -> tuple[AgentOutput, Stats]:
        """Like `learner.unroll_agent`, from the cached activations if these are of this batch and weights."""
        assert agent is self.agent
        weights = self._versions()
        same = self.cache.is_of(batch) and self.cache.weights == weights
        cache = self.cache if same else ActivationCache()
        observation, reward = batch.observation.flatten(0, 1), batch.reward.flatten()
        features = joined_trunk(self._batch, batch, weights)
        if features is None:
            start_transform_cache()  # what follows transforms weights for its backward pass, too
            features = self.trunk_features(observation)
        projected = None
        if cache.projection is not None:
            projected = stems.project(agent.stem, features, cache.projection)
        if projected is None:
            x = agent.core_input(features, reward)
        else:
            x = agent.append_reward(projected, reward)
        x = x.unflatten(0, batch.done.shape)
        core, result = self._core(), None
        if cache.core is not None and bptt == "full" and core is not None and core.unroll is not None:
            result = core.unroll(agent.core, x, batch.state, batch.done, cache.core)
        y, _, stats = result or agent.unroll_core(x, batch.state, batch.done, bptt)
        logits, values = agent.heads(y)
        return AgentOutput(logits.argmax(-1), logits, values), stats


def _act(agent: Agent, y: Tensor, greedy: bool, rng: Rng | None) -> AgentOutput | None:
    """Compute actions, logits and values from a core's output y `[B, n]`, like `Agent.heads` and `sample`, in
    one call of C; None if C cannot."""
    weights = weights_of(agent.policy, agent.baseline, kinds=(nn.Linear, nn.Linear))
    if not weights or not dense.is_supported(y, weights):
        return None
    exp_noise = None if greedy else exponential(y.new_empty(len(y), agent.policy.out_features), rng)
    action, logits, values = dense.heads(y, weights[:2], weights[2:], exp_noise)
    return AgentOutput(action, logits, agent.true_values(values))
