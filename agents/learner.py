"""The learner: one V-trace update from one batch of unrolls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .losses import baseline_loss, policy_entropy, policy_gradient_loss
from .network import REWARD_LIMIT, Agent, Bptt
from .unroll import Episodes, Unroll
from .vtrace import action_log_probs, vtrace_from_log_rhos

_ROUNDING = 1e-3
"""An importance ratio this close to 1 (as its log) differs by rounding, not by policy."""


class NonFiniteError(RuntimeError):
    """A loss or a gradient is NaN or infinite; the weights are those of before the update."""


@dataclass(frozen=True)
class LearnerConfig:
    """The published settings of Irie et al. 2021 (Appendix C) and their code; losses are sums, not means."""

    total_steps: int
    """agent steps after which the learning rate has fallen linearly to zero"""
    learning_rate: float = 6e-4
    discount: float = 0.99
    baseline_cost: float = 0.5
    entropy_cost: float = 0.01
    max_grad_norm: float = 40.0
    rmsprop_alpha: float = 0.99
    rmsprop_eps: float = 0.01
    bptt: Bptt = "full"


@dataclass(frozen=True)
class Part:
    """What came of some columns of a batch: all of it, or one process's share."""

    metrics: dict[str, float]
    num_steps: int
    version: int
    episodes: Episodes


class Learner:
    """Owns the agent's weights, the optimizer and the count of agent steps learned from."""

    def __init__(self, agent: Agent, config: LearnerConfig) -> None:
        self.agent = agent
        self.config = config
        self.optimizer = torch.optim.RMSprop(
            agent.parameters(), lr=config.learning_rate, alpha=config.rmsprop_alpha, eps=config.rmsprop_eps
        )
        self.steps = 0
        self.version = 0
        """updates done"""

    def learning_rate(self) -> float:
        """Of the next update: annealed linearly to zero, and corrected for RMSProp's start from zero.

        A mean square that starts from zero makes the first steps up to ten times too long, and the policy may
        be nearly deterministic before it has learned anything. The factor is Adam's; it is 0.93 after 200
        updates. The published code has none.
        """
        remaining = 1.0 - min(self.steps, self.config.total_steps) / self.config.total_steps
        correction = (1.0 - self.config.rmsprop_alpha ** (self.version + 1)) ** 0.5
        return self.config.learning_rate * remaining * correction

    def update(self, batch: Unroll) -> dict[str, float]:
        """Learn from one batch and return the metrics (agents/README.md says what each means).

        Raises NonFiniteError, before any weight changes, if a loss or gradient is not finite.
        """
        return self.step([self.backward(batch)])

    def backward(self, batch: Unroll) -> Part:
        """Leave the gradients of one batch, or of some of its columns, in the parameters' `grad`."""
        loss, metrics = self.loss(batch)
        if not torch.isfinite(loss):
            self._fail({**_named_inputs(batch), **dict(self.agent.named_parameters()), **metrics}, "loss")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        values = {name: float(value) for name, value in metrics.items()}
        return Part(values, batch.num_steps, batch.version, batch.episodes)

    def step(self, parts: Sequence[Part]) -> dict[str, float]:
        """Change the weights by the gradients in `grad`, the sum over all parts of one batch."""
        parameters = list(self.agent.parameters())
        grad_norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not torch.isfinite(grad_norm):
            gradients = {f"gradient of {n}": p.grad for n, p in self.agent.named_parameters()}
            self._fail({n: g for n, g in gradients.items() if g is not None}, "gradient norm")
        nn.utils.clip_grads_with_norm_(parameters, self.config.max_grad_norm, grad_norm)
        lr = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

        lag = self.version - min(part.version for part in parts)
        self.steps += sum(part.num_steps for part in parts)
        self.version += 1
        return {
            **_together([part.metrics for part in parts]),
            "grad_norm": float(grad_norm),
            "learning_rate": lr,
            "policy_lag": lag,
        }

    def loss(self, batch: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        """The V-trace actor-critic loss of a batch, a scalar, and its parts (detached).

        Losses are sums over time and batch. Steps whose action the environment forced teach the value
        function only: there the behaviour is part of the environment, so their ratio is 1.
        """
        config = self.config
        output, _ = self.agent.unroll(batch.frame, batch.reward, batch.done, batch.state, config.bptt)
        logits, values = output.policy_logits[:-1], output.baseline[:-1]
        chosen = ~batch.forced
        rewards = batch.reward[1:].clamp(-REWARD_LIMIT, REWARD_LIMIT)
        discounts = config.discount * (~batch.done[1:]).float()
        with torch.no_grad():
            log_rhos = action_log_probs(logits, batch.action) - action_log_probs(
                batch.behavior_logits, batch.action
            )
        targets = vtrace_from_log_rhos(
            log_rhos * chosen, discounts, rewards, values.detach(), output.baseline[-1].detach()
        )
        policy_loss = policy_gradient_loss(logits, batch.action, targets.pg_advantages * chosen)
        value_loss = config.baseline_cost * baseline_loss(values, targets.vs)
        entropy = policy_entropy(logits)
        loss = policy_loss + value_loss - config.entropy_cost * (entropy * chosen).sum()
        metrics = {
            "total_loss": loss,
            "policy_loss": policy_loss,
            "baseline_loss": value_loss,
            "entropy": entropy.mean(),
            "clipped_rho_share": (targets.log_rhos > _ROUNDING).float().mean(),
            "log_rho_abs_max": targets.log_rhos.abs().max(),
            **self.agent.core.stats,
        }
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _fail(self, tensors: Mapping[str, Tensor], what: str) -> None:
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise NonFiniteError(f"{what} of update {self.version + 1} is not finite: first in {name}")
        raise NonFiniteError(f"{what} of update {self.version + 1} overflowed")

    def state_dict(self) -> dict[str, Any]:
        """All but the weights, as plain types and tensors."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "version": self.version,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        self.version = state["version"]


_SUMS = ("total_loss", "policy_loss", "baseline_loss")
_LARGEST = ("log_rho_abs_max",)


def _together(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of a batch from those of its parts, all of one size."""
    together = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if name in _LARGEST:
            together[name] = max(values)
        else:
            together[name] = sum(values) / (1 if name in _SUMS else len(values))
    return together


def _named_inputs(batch: Unroll) -> dict[str, Tensor]:
    state = {f"initial state {i}": part for i, part in enumerate(batch.state)}
    named = {"observations": batch.frame, "rewards": batch.reward, "behaviour logits": batch.behavior_logits}
    return {**named, **state}
