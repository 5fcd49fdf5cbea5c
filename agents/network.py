"""The agent's network: stem, core, policy head and value head."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..cores import Core, State, core_feature_size, core_name, make_core
from .stems import make_stem

Bptt = Literal["full", "per_step"]
REWARD_LIMIT = 1.0
"""Rewards are clamped to this, as the core's input and in the loss."""


@dataclass(frozen=True)
class AgentSpec:
    """All that is needed to build an agent, and the environment that it was trained for."""

    observation_shape: tuple[int, ...]
    num_actions: int
    core: str
    stem: str
    core_options: dict[str, Any] = field(default_factory=dict)
    game: str | None = None
    env_id: str | None = None
    protocol: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", core_name(self.core))  # older checkpoints write rdn-large


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
        self.core: Core = make_core(spec.core, feature_size + 1, **spec.core_options)
        self.policy = nn.Linear(self.core.output_size, spec.num_actions)
        self.baseline = nn.Linear(self.core.output_size, 1)
        self.autocast_dtype: torch.dtype | None = None
        """dtype of the stem's arithmetic; None is float32. Core, heads and losses are always float32."""

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        return self.core.initial_state(batch_size, device or self.policy.weight.device)

    def at_rest(self) -> contextlib.AbstractContextManager[object]:
        """A context in which weights do not change, so that `act` on a CPU casts those that require gradients
        once and not at every step: autocast keeps them until its outermost context ends. On a GPU its graph
        has to cast them, since it is replayed with others.
        """
        on_cpu = self.policy.weight.device.type == "cpu"
        return torch.autocast("cpu", enabled=False) if on_cpu else contextlib.nullcontext()

    def act(
        self,
        frame: Tensor,
        reward: Tensor,
        done: Tensor,
        state: State,
        greedy: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[AgentOutput, State]:
        """One step: frame `[B, ...]`, reward `[B]` of the last action, done `[B]` where the frame is the
        first of an episode. The action is sampled from the policy, or its most likely one if `greedy`.
        """
        y, state = self.core.step(self._core_input(frame, reward), state, done)
        logits = self.policy(y)
        action = logits.argmax(-1) if greedy else _sample(logits, generator)
        return AgentOutput(action, logits, self.baseline(y).squeeze(-1)), state

    def unroll(
        self, frame: Tensor, reward: Tensor, done: Tensor, state: State, bptt: Bptt = "full"
    ) -> tuple[AgentOutput, State]:
        """T steps at once: frame `[T, B, ...]`, reward and done `[T, B]`; `action` is the greedy one.

        `bptt="per_step"` lets no gradient cross a time step of a fast-weight core, as in the published RL
        code; other cores have the whole unroll either way.
        """
        T, B = done.shape
        x = self._core_input(frame.flatten(0, 1), reward.flatten()).unflatten(0, (T, B))
        unroll = self.core.unroll if bptt == "full" else self.core.unroll_per_step
        y, state = unroll(x, state, done)
        logits = self.policy(y)
        return AgentOutput(logits.argmax(-1), logits, self.baseline(y).squeeze(-1)), state

    def _core_input(self, frame: Tensor, reward: Tensor) -> Tensor:
        """`[N, feature_size + 1]`: the stem's features and the clamped last reward."""
        dtype = self.autocast_dtype
        with torch.autocast(frame.device.type, dtype) if dtype else contextlib.nullcontext():
            features = self.stem(frame)
        return torch.cat([features, reward.clamp(-REWARD_LIMIT, REWARD_LIMIT).unsqueeze(-1)], dim=-1)


def _sample(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Categorical samples `[B]` by the exponential race: argmax of p_i / e_i with e_i ~ Exp(1)."""
    race = torch.empty_like(logits).exponential_(generator=generator)
    return (logits.softmax(-1) / race).argmax(-1)
