"""The agent's network: stem, core, policy head and value head."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..cores import Core, Kept, State, Stats, core_feature_size, core_name, make_core
from ..kernels.native.held import made_once
from . import heads
from .known import UNKNOWN, Known
from .noise import Noise
from .normaliser import Normaliser
from .stems import make_stem

Bptt = Literal["full", "per_step"]
OLDER: Final = {"reward_clip": 1.0}
"""Fields of the spec of an agent that is older than they are, where those are not the defaults."""


@dataclass(frozen=True)
class AgentSpec:
    """Everything needed to build an agent, and the environment it was trained for."""

    observation_shape: tuple[int, ...]
    num_actions: int
    core: str
    stem: str
    core_options: dict[str, Any] = field(default_factory=dict)
    game: str | None = None
    env_id: str | None = None
    protocol: str | None = None
    normalised: tuple[int, ...] = ()
    """the entries of a vector that are normalised (normaliser.py)"""
    observations: str = "plain"
    """how those of an environment other than a game are read (envs/observations.py); as older agents do"""
    env_options: dict[str, Any] = field(default_factory=dict)
    reward_scale: float = 1.0
    """factor of rewards, in what the core reads and in what is learned"""
    reward_clip: float = 0.0
    """what they are clipped to then, on both sides of zero; 0 for nothing"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", core_name(self.core))  # older checkpoints write rdn-large
        object.__setattr__(self, "normalised", tuple(self.normalised))  # JSON has lists


class AgentOutput(NamedTuple):
    action: Tensor
    """int64 `[...]`"""
    policy_logits: Tensor
    """float32 `[..., num_actions]`"""
    baseline: Tensor
    """float32 `[...]`, the value estimate V"""


class Agent(nn.Module):
    """Stem + core + heads. `act` for one step of B environments, `unroll` for T steps of them."""

    def __init__(self, spec: AgentSpec) -> None:
        super().__init__()
        self.spec = spec
        feature_size = core_feature_size(spec.core)
        self.stem = make_stem(spec.stem, spec.observation_shape, feature_size)
        self.normaliser: Normaliser | None = None
        if spec.normalised:
            self.normaliser = Normaliser(math.prod(spec.observation_shape), spec.normalised)
        self.core: Core = make_core(spec.core, feature_size + 1, **spec.core_options)
        self.policy = nn.Linear(self.core.output_size, spec.num_actions)
        self.baseline = nn.Linear(self.core.output_size, 1)
        self.autocast_dtype: torch.dtype | None = None
        """dtype of the stem's arithmetic; None is float32. Core, heads and losses are always float32."""

    @property
    def reward_limit(self) -> float:
        """What rewards are clipped to once they are scaled; infinity for nothing."""
        return self.spec.reward_clip or math.inf

    def compressed_reward(self, reward: Tensor) -> Tensor:
        """Return rewards of any shape, scaled, on the scale on which the core reads them before any clipping.

        Where none are clipped that is symlog, sign(r) ln(1 + |r|) (Hafner et al. 2023): a reward of 10,000 in
        full would drown whatever else the core reads.
        """
        scaled = self.spec.reward_scale * reward
        return scaled if self.spec.reward_clip else scaled.sign() * scaled.abs().log1p()

    def learned_reward(self, reward: Tensor) -> Tensor:
        """Return rewards of any shape as they are learned: scaled, then clipped."""
        return (self.spec.reward_scale * reward).clamp(-self.reward_limit, self.reward_limit)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return self.core.initial_state(batch_size, device or self.policy.weight.device)

    @contextlib.contextmanager
    def held_weights(self) -> Iterator[None]:
        """Promise that the weights do not change inside, so that what a CPU makes of them is made once: casts
        to `autocast_dtype`, which autocast caches until its outermost context ends, and what convolutions
        transform. On a GPU the captured graph contains the casts, since it is replayed with new weights.
        """
        on_cpu = self.policy.weight.device.type == "cpu"
        with torch.autocast("cpu", enabled=False) if on_cpu else contextlib.nullcontext(), made_once():
            yield

    def act(
        self,
        observation: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
        generator: Noise | None = None,
    ) -> tuple[AgentOutput, State]:
        """Act for one step: observation `[B, ...]`, reward `[B]` of the last action, done `[B]` where the
        observation is the first of an episode. The action is sampled from the policy, or the most likely one
        if `greedy`.
        """
        return self.act_on(self.trunk_features(observation), reward, done, state, greedy, generator)

    def act_on(
        self,
        trunk_features: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
        generator: Noise | None = None,
        known: Known = UNKNOWN,
    ) -> tuple[AgentOutput, State]:
        """Do as `act`, given the observation's `trunk_features`, and add to what is `known`."""
        x = self.core_input(trunk_features, reward, known.projection)
        if known.core is None:
            y, state = self.core.step(x, state, done)
        else:
            y, state = self.core.keeping_step(x, state, done, known.core)
        return AgentOutput(*heads.act(y, self.policy, self.baseline, greedy, generator)), state

    def unroll(
        self,
        observation: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        bptt: Bptt = "full",
        known: Known = UNKNOWN,
    ) -> tuple[AgentOutput, State, Stats]:
        """Evaluate T steps at once: observation `[T, B, ...]`, reward and done `[T, B]`.

        `action` is the greedy one. The statistics are the core's, to be logged. `bptt="per_step"` lets no
        gradient cross a time step of a fast-weight core, as in the published RL code; for other cores
        gradients flow through the whole unroll either way. What is `known` is not computed again.
        """
        T, B = done.shape
        features = torch.cat(known.trunk) if known.trunk else self.trunk_features(observation.flatten(0, 1))
        x = self.core_input(features, reward.flatten(), known.projection).unflatten(0, (T, B))
        if known.core is not None and bptt == "full":
            y, state, stats = self.core.known_unroll(x, state, done, known.core)
        else:
            unroll = self.core.measured_unroll if bptt == "full" else self.core.unroll_per_step
            y, state, stats = unroll(x, state, done)
        logits = self.policy(y)
        return AgentOutput(logits.argmax(-1), logits, self.baseline(y).squeeze(-1)), state, stats

    def new_kept_projection(self, steps: int, rows: int) -> Kept | None:
        """Make room for the stem's projections of an unroll, where they are in float32."""
        return self.stem.new_kept(steps, rows) if self.autocast_dtype is None else None

    def trunk_features(self, observation: Tensor) -> Tensor:
        """Run the first part of the stem: observations `[N, ...]` -> `[N, n]`."""
        if self.normaliser is not None:
            observation = self.normaliser(observation)
        with self._autocast():
            return self.stem.trunk_features(observation)

    def core_input(self, trunk_features: Tensor, reward: Tensor, projection: Kept | None = None) -> Tensor:
        """Concatenate the stem's features and the last reward as it is read: `[N, feature_size + 1]`."""
        read, limit = self.compressed_reward(reward), self.reward_limit
        stepped = self.stem.step(trunk_features, read, limit, projection)
        if stepped is not None:
            return stepped
        with self._autocast():
            features = self.stem.project(trunk_features, projection)
        return torch.cat([features, read.clamp(-limit, limit).unsqueeze(-1)], dim=-1)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        # Gradients of a cast that several steps share would be added up in its own, lower precision.
        shared = not torch.is_grad_enabled()
        return torch.autocast(self.policy.weight.device.type, self.autocast_dtype, cache_enabled=shared)
