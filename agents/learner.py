"""The learner: the V-trace actor-critic loss of a batch of unrolls, and the update that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores import Stats
from .episodes import Episodes
from .executor import EagerExecutor
from .losses import AllReduce, actor_critic, identity
from .make_executor import make_executor
from .network import Agent, AgentOutput, Bptt
from .normaliser import merge, moments
from .returns import std
from .rmsprop import RMSprop, rmsprop_if
from .truncation_bootstrap import truncation_bootstrap
from .unroll import Unroll

Truncation = Literal["bootstrap", "terminal"]


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
    rmsprop_corrected: bool = True
    """whether the first steps are as long as later ones: the published code's are up to ten times as long"""
    bptt: Bptt = "full"
    truncation: Truncation = "bootstrap"
    """what follows an episode that was truncated: the value of its last observation, or nothing"""
    normalise_rewards: bool = False
    """whether rewards are divided by the running deviation of discounted returns (returns.py)"""
    normalise_advantages: bool = False
    """whether the policy's advantages get mean 0 and deviation 1 in each batch (losses.py)"""


def unroll_agent(agent: Agent, batch: Unroll, bptt: Bptt) -> tuple[AgentOutput, Stats]:
    """Evaluate the agent on all T + 1 observations of a batch; the statistics are of its memory."""
    output, _, stats = agent.unroll(batch.observation, batch.reward, batch.done, batch.state, bptt)
    return output, stats


class UpdateOps(NamedTuple):
    """Implementations that an update uses; any may be swapped for an equivalent, faster one."""

    unroll: Callable[[Agent, Unroll, Bptt], tuple[AgentOutput, Stats]] = unroll_agent
    actor_critic: Callable[..., tuple[Tensor, dict[str, Tensor]]] = actor_critic
    rmsprop: Callable[..., None] = rmsprop_if


_SUMS = ("total_loss", "policy_loss", "baseline_loss")
_MAXIMA = ("log_rho_abs_max",)


def _combine(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the metrics of a batch's parts, which are of one size: means but for the named ones."""
    combined = {}
    for name in several[0]:
        values = [metrics[name] for metrics in several]
        if name in _MAXIMA:
            combined[name] = max(values)
        else:
            combined[name] = sum(values) / (1 if name in _SUMS else len(values))
    return combined


@dataclass(frozen=True)
class PartialUpdate:
    """Metrics and counts of a batch, or of one process's columns of it, whose gradients are in `grad`."""

    metrics: Mapping[str, float]
    num_steps: int
    version: int
    """number of updates behind the weights that acted"""
    episodes: Episodes
    moments: Tensor | NDArray[np.float64] | None = None
    """of its observations, where the agent normalises them: float64 `[3, D]` (normaliser.py)"""
    returns: NDArray[np.float64] | None = None
    """moments of its discounted returns, where rewards are normalised: `[3, 1]` (returns.py)"""


class Learner:
    """Owns the agent's weights, the optimizer and the count of agent steps trained on.

    An update is `backward` and `step`. The executor calls back for the arithmetic of each,
    `compute_gradients` (of `loss`) and `apply_gradients`: eagerly, or enqueued on a GPU (cuda/enqueued.py).
    There metrics arrive when they are read, and a non-finite update raises NonFiniteError later: at the next
    update, a read or `synchronize`. accelerate.py alone replaces `ops`, and compiled.py sets `compiled_loss`.
    """

    def __init__(
        self,
        agent: Agent,
        config: LearnerConfig,
        executor: Callable[[Learner], EagerExecutor] = make_executor,
    ) -> None:
        self.agent = agent
        self.config = config
        self._parameters = list(agent.parameters())
        self.optimizer = RMSprop(
            self._parameters, lr=config.learning_rate, alpha=config.rmsprop_alpha, eps=config.rmsprop_eps
        )
        self.steps = 0
        """agent steps trained on"""
        self.version = 0
        """number of updates done, or enqueued"""
        device = agent.policy.weight.device
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        """whether all updates so far were finite; while it is false, an update changes nothing"""
        self._rate = torch.zeros((), device=device)
        self._returns = torch.zeros(3, 1, dtype=torch.float64)
        """moments of the discounted returns of all batches"""
        self._reward_divisor = torch.ones((), device=device) if config.normalise_rewards else None
        self.all_reduce: AllReduce = identity
        """sums a tensor over the processes that share a batch"""
        self.ops = UpdateOps()
        self.compiled_loss: Callable[[Unroll], tuple[Tensor, dict[str, Tensor]]] | None = None
        """what `compute_gradients` calls instead of `loss`, if compiled.py set it"""
        self._executor = executor(self)

    def update(self, batch: Unroll) -> Mapping[str, float]:
        """Learn from one batch and return the metrics (listed in agents/README.md).

        Raises NonFiniteError if a loss or gradient is not finite; then no weight has changed.
        """
        return self.step([self.backward(batch)])

    def loss(self, batch: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a batch's loss, a scalar, and what to log of it and of the memory, detached scalars.

        A term of your own goes here or, where it needs logits and values alone, into losses.py; README.md has
        the rules, for trial runs call it too, and a CUDA graph captures it.
        """
        config, reward = self.config, batch.reward[1:]
        if self._reward_divisor is not None:
            reward = reward / self._reward_divisor
        output, memory_stats = self.ops.unroll(self.agent, batch, config.bptt)
        loss, metrics = self.ops.actor_critic(
            output.policy_logits,
            output.baseline,
            batch,
            self.agent.training_reward(reward),
            discount=config.discount,
            baseline_cost=config.baseline_cost,
            entropy_cost=config.entropy_cost,
            all_reduce=self.all_reduce if config.normalise_advantages else None,
        )
        return loss, {**metrics, **{name: value.detach() for name, value in memory_stats.items()}}

    def compute_gradients(self, batch: Unroll) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        """Compute a batch's metrics and the gradients of the parameters."""
        loss, metrics = (self.compiled_loss or self.loss)(batch)
        for parameter in self._parameters:
            parameter.grad = None
        # Seeded with NaN if the loss is not finite, so that the norm of the gradients is NaN, too.
        loss.backward(1 + 0 * loss.detach())
        return metrics, [parameter.grad for parameter in self._parameters]

    def backward(self, batch: Unroll) -> PartialUpdate:
        """Leave the gradients of a batch, or of some of its columns, in the parameters' `grad`.

        The next call may overwrite them, since a CUDA graph reuses its buffers; `grad` may be changed or
        replaced before `step`.
        """
        if batch.truncations is not None and self.config.truncation == "bootstrap":
            batch = replace(
                batch, truncation_bootstrap=truncation_bootstrap(self.agent, batch, self.config.discount)
            )
        metrics, gradients = self._executor.backward(batch)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        # The last observation is the first of the next unroll.
        seen = moments(batch.observation[:-1]) if self.agent.normaliser else None
        returns = None
        if self.config.normalise_rewards:
            returns = merge(torch.zeros_like(self._returns), *batch.episodes.return_moments).numpy()
        return PartialUpdate(metrics, batch.num_steps, batch.version, batch.episodes, seen, returns)

    def apply_gradients(self, gradients: Sequence[Tensor], grad_norm: Tensor) -> None:
        """Clip the gradients and change the weights, unless this or an earlier update was not finite."""
        parameters = [p for p in self._parameters if p.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        # as torch's clip_grad_norm_
        clipping = (self.config.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        self.finite.logical_and_(grad_norm.isfinite())
        self.optimizer.step_if(self.finite, self._rate, clipping, self.ops.rmsprop)

    def step(self, parts: Sequence[PartialUpdate]) -> Mapping[str, float]:
        """Change the weights by the gradients in `grad`, the sum over all parts of one batch, and
        update the running statistics of observations and returns.
        """
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._rate.fill_(rate)
        norm = self._executor.step([p.grad for p in self._parameters if p.grad is not None])
        if self.agent.normaliser:
            self.agent.normaliser.update_stats([each.moments for each in parts if each.moments is not None])
        self._update_return_stats([each.returns for each in parts if each.returns is not None])
        divided = {} if self._reward_divisor is None else {"reward_divisor": self.reward_divisor}
        lag = self.version - min(each.version for each in parts)

        def metrics() -> dict[str, float]:
            return {
                **_combine([each.metrics for each in parts]),
                **norm,
                "clipped_grad_share": float(norm["grad_norm"] > self.config.max_grad_norm),
                "learning_rate": rate,
                "policy_lag": lag,
                **divided,
            }

        reported = self._executor.report(metrics)
        self.steps += sum(each.num_steps for each in parts)
        self.version += 1
        return reported

    def _update_return_stats(self, several: Sequence[NDArray[np.float64]]) -> None:
        """Merge moments `[3, 1]` of returns, and divide rewards by their deviation from now on."""
        self._returns = merge(self._returns, *several)
        self.divide_rewards(self.reward_divisor)

    @property
    def reward_divisor(self) -> float:
        """By what rewards are divided, where they are normalised: the deviation of returns so far."""
        return std(self._returns)

    def divide_rewards(self, divisor: float) -> None:
        """Divide rewards by this from now on, where they are normalised."""
        if self._reward_divisor is not None:
            self._reward_divisor.fill_(divisor)

    def learning_rate(self) -> float:
        """Return the next update's: annealed linearly to zero, and corrected for RMSProp's start from zero.

        A mean square that starts from zero makes the first steps up to ten times too long, and the policy may
        be nearly deterministic before it has learned anything. The factor is Adam's; it is 0.93 after 200
        updates. The published code has none, nor has `rmsprop_corrected=False`.
        """
        config = self.config
        remaining = 1.0 - min(self.steps, config.total_steps) / config.total_steps
        correction = (1.0 - config.rmsprop_alpha ** (self.version + 1)) ** 0.5
        return config.learning_rate * remaining * (correction if config.rmsprop_corrected else 1.0)

    def synchronize(self) -> None:
        """Wait for the last update. Raises NonFiniteError if it was not finite."""
        self._executor.synchronize()

    def state_dict(self) -> dict[str, Any]:
        """Return all but the weights, as plain types and tensors. Raises NonFiniteError, as `synchronize`."""
        self.synchronize()
        return {
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "version": self.version,
            **({} if self._reward_divisor is None else {"returns": self._returns}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self._executor.reset()
        self.steps = state["steps"]
        self.version = state["version"]
        self._returns = state.get("returns", torch.zeros_like(self._returns))
        self.divide_rewards(self.reward_divisor)
