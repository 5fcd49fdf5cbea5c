"""The agent's network: stem, core, policy head and value head."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..cores import Core, State, Stats, core_feature_size, core_name, make_core, unroll_truncated
from .normaliser import Normaliser, make_normaliser
from .sampling import Rng, sample
from .stems import make_stem
from .value_normaliser import ValueNormaliser

Bptt = Literal["full", "per_step"]
LEGACY_DEFAULTS: Final = {"reward_clip": 1.0}
"""Values of fields of `AgentSpec` that old checkpoints lack, where they differ from today's defaults."""
_STEPS_AT_ONCE = 100
"""Through the stem, in `core_inputs`."""


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
    """Indices of the entries of a vector observation that are normalised (normaliser.py); of images, all of
    their channels, or none."""
    observations: str = "plain"
    """Preprocessing of observations, for an environment other than a game (envs/observations.py)."""
    env_options: dict[str, Any] = field(default_factory=dict)
    reward_scale: float = 1.0
    """Factor of rewards, in the core's input and in the loss."""
    reward_clip: float = 0.0
    """Bound c: scaled rewards are clipped to [-c, c]; 0 for no clipping."""
    normalise_values: bool = False
    """Whether the value head predicts normalised values (value_normaliser.py)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", core_name(self.core))  # older checkpoints write rdn-large
        object.__setattr__(self, "normalised", tuple(self.normalised))  # JSON has lists


class AgentOutput(NamedTuple):
    """An agent's outputs, `[B]` for a step and `[T, B]` for an unroll."""

    action: Tensor
    """Actions, int64 `[...]`."""
    policy_logits: Tensor
    """Logits of the policy, float32 `[..., A]`."""
    baseline: Tensor
    """Value estimates V, float32 `[...]`."""


class Agent(nn.Module):
    """Stem + core + heads. `act` for one step of B environments, `unroll` for T steps of them."""

    def __init__(self, spec: AgentSpec) -> None:
        super().__init__()
        self.spec = spec
        feature_size = core_feature_size(spec.core)
        self.stem = make_stem(spec.stem, spec.observation_shape, feature_size, bool(spec.normalised))
        self.normaliser: Normaliser | None = None
        if spec.normalised:
            self.normaliser = make_normaliser(spec.observation_shape, spec.normalised)
        self.core: Core = make_core(spec.core, feature_size + 1, **spec.core_options)
        self.policy = nn.Linear(self.core.output_size, spec.num_actions)
        self.baseline = nn.Linear(self.core.output_size, 1)
        self.value_normaliser = ValueNormaliser() if spec.normalise_values else None
        self.autocast_dtype: torch.dtype | None = None
        """The dtype of the stem's arithmetic; None is float32. Core, heads and losses are always float32."""

    @property
    def reward_limit(self) -> float:
        """Bound to which scaled rewards are clipped; infinity for no clipping."""
        return self.spec.reward_clip or math.inf

    def core_reward(self, reward: Tensor) -> Tensor:
        """Return rewards as the core reads them, any shape: scaled and clipped, or symlog if clipping is off.

        symlog(r) = sign(r) ln(1 + |r|) (Hafner et al. 2023): an unsquashed reward of 10,000 would drown
        whatever else the core reads.
        """
        if self.spec.reward_clip:
            return self.training_reward(reward)
        scaled = self.spec.reward_scale * reward
        return scaled.sign() * scaled.abs().log1p()

    def training_reward(self, reward: Tensor) -> Tensor:
        """Return rewards of any shape as the loss uses them: scaled, then clipped."""
        return (self.spec.reward_scale * reward).clamp(-self.reward_limit, self.reward_limit)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return self.core.initial_state(batch_size, device or self.policy.weight.device)

    def act(
        self,
        observation: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
        generator: Rng | None = None,
    ) -> tuple[AgentOutput, State]:
        """Act for one step: observation `[B, ...]`, reward `[B]` of the last action, done `[B]` where the
        observation is the first of an episode. The action is sampled from the policy, or the most likely one
        if `greedy`.
        """
        x = self.core_input(self.trunk_features(observation), reward)
        y, state = self.core.step(x, state, done)
        logits, values = self.heads(y)
        action = logits.argmax(-1) if greedy else sample(logits, generator)
        return AgentOutput(action, logits, values), state

    def unroll(
        self, observation: Tensor, reward: Tensor, done: Tensor, state: State, bptt: Bptt = "full"
    ) -> tuple[AgentOutput, State, Stats]:
        """Evaluate T steps at once: observation `[T, B, ...]`, reward and done `[T, B]`.

        `action` is the greedy one. The statistics are the core's, to be logged. `bptt="per_step"` truncates
        BPTT at every step of a core with `has_fast_weights` (all of the backbone, attention included), as in
        the published RL code; for other cores gradients flow through the whole unroll either way.
        """
        features = self.trunk_features(observation.flatten(0, 1))
        x = self.core_input(features, reward.flatten()).unflatten(0, done.shape)
        y, state, stats = self.unroll_core(x, state, done, bptt)
        logits, values = self.heads(y)
        return AgentOutput(logits.argmax(-1), logits, values), state, stats

    def trunk_features(self, observation: Tensor) -> Tensor:
        """Run the first part of the stem: observations `[N, ...]` -> `[N, n]`."""
        if self.normaliser is not None:
            observation = self.normaliser(observation)
        with self.autocast():
            return self.stem.trunk_features(observation)

    def core_input(self, trunk_features: Tensor, reward: Tensor) -> Tensor:
        """Concatenate the stem's features and the last reward: `[N, feature_size + 1]`."""
        with self.autocast():
            features = self.stem.project(trunk_features)
        return self.append_reward(features, reward)

    def core_inputs(self, observation: Tensor, reward: Tensor) -> Tensor:
        """Compute what the core reads in N steps, which may be many: a hundred at once go through the stem.

        observation `[N, ...]`, reward `[N]` of the action before -> `[N, feature_size + 1]`.
        """
        pairs = zip(observation.split(_STEPS_AT_ONCE), reward.split(_STEPS_AT_ONCE), strict=True)
        return torch.cat([self.core_input(self.trunk_features(seen), before) for seen, before in pairs])

    def append_reward(self, features: Tensor, reward: Tensor) -> Tensor:
        """Append the last reward `[N]`, as the core reads it, to the features `[N, feature_size]`."""
        return torch.cat([features, self.core_reward(reward).unsqueeze(-1)], dim=-1)

    def unroll_core(
        self, x: Tensor, state: State, done: Tensor, bptt: Bptt = "full"
    ) -> tuple[Tensor, State, Stats]:
        """Run the core over x `[T, B, feature_size + 1]`; `bptt` as in `unroll`."""
        if bptt == "full":
            return self.core.unroll_with_stats(x, state, done)
        return unroll_truncated(self.core, x, state, done)

    def heads(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits `[..., A]` and values `[...]` from the core's output `[..., n]`."""
        return self.policy(y), self.true_values(self.baseline(y).squeeze(-1))

    def true_values(self, predicted: Tensor) -> Tensor:
        """Return the values V that the value head's outputs stand for, both `[...]`."""
        return predicted if self.value_normaliser is None else self.value_normaliser(predicted)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        # cpu/agent.py runs the stem of an actor's steps with grad, for the learner to backpropagate through:
        # from autocast's cache all T steps would have one bfloat16 copy of a weight, and sum gradients in it.
        cache_casts = not torch.is_grad_enabled()
        return torch.autocast(self.policy.weight.device.type, self.autocast_dtype, cache_enabled=cache_casts)
