"""The learner: the V-trace actor-critic loss of a batch of unrolls, and the update that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..cores import Stats
from .adam import Adam, adam_if_finite
from .episodes import Episodes
from .executor import EagerExecutor
from .losses import TARGET_MOMENTS, AllReduce, actor_critic, identity
from .make_executor import make_executor
from .network import Agent, AgentOutput, Bptt
from .normaliser import merge
from .replay import ages
from .returns import std
from .rmsprop import RMSprop, rmsprop_if_finite
from .truncation_bootstrap import truncation_bootstrap
from .unroll import Unroll

Truncation = Literal["bootstrap", "terminal"]
Optimizer = Literal["rmsprop", "adam"]


@dataclass(frozen=True)
class LearnerConfig:
    """Settings of the update; losses are sums over time and batch, not means.

    The defaults are the published ones of Irie et al. 2021 (Appendix C) and their code, except for three that
    `--preset published` restores: `bptt` (per_step), `truncation` (terminal) and `rmsprop_corrected` (False).
    """

    total_steps: int
    """Agent steps over which the learning rate falls linearly to zero."""
    learning_rate: float = 6e-4
    discount: float = 0.99
    baseline_cost: float = 0.5
    entropy_cost: float = 0.01
    vtrace_lambda: float = 1.0
    """λ of V-trace (Espeholt et al. 2018, remark 2): below 1, targets trust the value function more."""
    clip_ratio: float = 0.0
    """ε of PPO's clipped surrogate (Schulman et al. 2017), which then takes the place of V-trace's policy
    gradient; 0 disables it."""
    replay_max_kl: float = 0.0
    """Bound on KL(behaviour ‖ policy) of a step, in nats (losses.py), as of LASER's trust region; 0: none."""
    max_grad_norm: float = 40.0
    optimizer: Optimizer = "rmsprop"
    adam_eps: float = 1e-5
    rmsprop_alpha: float = 0.99
    rmsprop_eps: float = 0.01
    rmsprop_corrected: bool = True
    """Whether RMSProp's start from zero is corrected; else the first steps are up to ten times as long."""
    bptt: Bptt = "full"
    truncation: Truncation = "bootstrap"
    """Whether a truncated episode's return is bootstrapped from its final observation or ends in 0."""
    normalise_rewards: bool = False
    """Whether rewards are divided by the running standard deviation of discounted returns (returns.py)."""
    normalise_advantages: bool = False
    """Whether the policy's advantages have mean 0 and standard deviation 1 over each batch or minibatch
    (losses.py)."""


def unroll_agent(agent: Agent, batch: Unroll, bptt: Bptt) -> tuple[AgentOutput, Stats]:
    """Evaluate the agent on all T + 1 observations of a batch; the statistics are of its memory."""
    output, _, stats = agent.unroll(batch.observation, batch.reward, batch.done, batch.state, bptt)
    return output, stats


class UpdateOps(NamedTuple):
    """Implementations that an update uses; any may be swapped for an equivalent, faster one."""

    unroll: Callable[[Agent, Unroll, Bptt], tuple[AgentOutput, Stats]] = unroll_agent
    actor_critic: Callable[..., tuple[Tensor, dict[str, Tensor]]] = actor_critic
    rmsprop: Callable[..., None] = rmsprop_if_finite
    adam: Callable[..., None] = adam_if_finite


def make_optimizer(config: LearnerConfig, parameters: list[nn.Parameter]) -> RMSprop | Adam:
    if config.optimizer == "adam":
        return Adam(parameters, lr=config.learning_rate, eps=config.adam_eps)
    return RMSprop(parameters, lr=config.learning_rate, alpha=config.rmsprop_alpha, eps=config.rmsprop_eps)


_SUMS = ("total_loss", "policy_loss", "baseline_loss")
_MAXIMA = ("log_rho_abs_max",)


def _combine(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the metrics of equally large partial updates: means, except for `_SUMS` and `_MAXIMA`."""
    combined = {}
    for name in metrics[0]:
        values = [each[name] for each in metrics]
        if name in _MAXIMA:
            combined[name] = max(values)
        else:
            combined[name] = sum(values) / (1 if name in _SUMS else len(values))
    return combined


@dataclass(frozen=True)
class PartialUpdate:
    """Metrics and counts of a batch, or of one process's share of it, whose gradients are in `grad`."""

    metrics: Mapping[str, float]
    num_steps: int
    """Number of agent steps that count with this update (`Unroll.counted`)."""
    version: int
    """Weight version that acted: the number of updates applied to it before."""
    episodes: Episodes
    moments: Tensor | NDArray[np.float64] | None = None
    """Moments of the observations, float64 `[3, D]` (normaliser.py); None if the agent does not normalise,
    or where another process's are those of all."""
    returns: NDArray[np.float64] | None = None
    """Moments of the returns, float64 `[3, 1]` (returns.py); None unless rewards are normalised."""
    targets: Tensor | NDArray[np.float64] | None = None
    """Moments of the value targets, float64 `[3, 1]`; None unless the agent normalises values."""
    replayed: tuple[int, int] = (0, 0)
    """Number of replayed environments, and the updates between acting and learning, summed over them."""
    num_learned: int = 0
    """Number of agent steps that the gradients are of: fresh ones, and such as were learned from before."""


class Learner:
    """Owns the agent's weights, the optimizer and the count of agent steps trained on.

    An update is `backward` and `step`. The executor calls back for the arithmetic of each,
    `compute_gradients` (of `loss`) and `apply_gradients`: eagerly, or enqueued on a GPU (cuda/enqueued.py).
    On a GPU metrics are lazy, and a non-finite update raises NonFiniteError later: at the next update, a read
    or `synchronize`. accelerate.py replaces `ops`; compiled.py replaces the configured optimizer's
    function in `ops` and sets `compiled_loss`; cpu/verify.py swaps `ops` for the duration of a comparison.
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
        self.optimizer = make_optimizer(config, self._parameters)
        self.steps = 0
        """Number of agent steps trained on."""
        self.version = 0
        """Number of updates done or enqueued."""
        device = agent.policy.weight.device
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        """Whether all updates so far were finite, a bool scalar; while False, updates change nothing."""
        self._rate = torch.zeros((), device=device)
        self._returns = torch.zeros(3, 1, dtype=torch.float64)
        """Moments of the discounted returns of all batches: float64 `[3, 1]` (returns.py)."""
        self._reward_divisor = torch.ones((), device=device) if config.normalise_rewards else None
        normalises = agent.value_normaliser is not None
        self._targets = torch.zeros(3, 1, dtype=torch.float64, device=device) if normalises else None
        """Moments of the value targets of the last `compute_gradients`."""
        self.all_reduce: AllReduce = identity
        """Sums a tensor over the processes that share a batch."""
        self.ops = UpdateOps()
        self.compiled_loss: Callable[[Unroll], tuple[Tensor, dict[str, Tensor]]] | None = None
        """The compiled `loss`, which `compute_gradients` calls in its place; None without `torch.compile`."""
        self._executor = executor(self)

    def update(self, batch: Unroll) -> Mapping[str, float]:
        """Learn from one batch and return the metrics (listed in agents/README.md).

        Raises NonFiniteError if a loss or gradient is not finite; then no weight has changed.
        """
        return self.step([self.backward(batch)])

    def loss(self, batch: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a batch's loss, a scalar, and what to log of it and of the memory, detached scalars.

        A term of your own goes here or, if it depends only on logits and values, into losses.py. Must be
        side-effect free: dry runs call it too, and CUDA graphs capture it (README.md has the rules).
        """
        config, reward = self.config, batch.reward[1:]
        if self._reward_divisor is not None:
            reward = reward / self._reward_divisor
        output, memory_stats = self.ops.unroll(self.agent, batch, config.bptt)
        value_stats = {}
        if self.agent.value_normaliser is not None:
            value_stats = dict(
                zip(("value_mean", "value_std"), self.agent.value_normaliser.mean_and_std(), strict=True)
            )
        loss, metrics = self.ops.actor_critic(
            output.policy_logits,
            output.baseline,
            batch,
            self.agent.training_reward(reward),
            discount=config.discount,
            baseline_cost=config.baseline_cost,
            entropy_cost=config.entropy_cost,
            vtrace_lambda=config.vtrace_lambda,
            clip_ratio=config.clip_ratio,
            value_std=value_stats.get("value_std"),
            max_kl=config.replay_max_kl,
            all_reduce=self.all_reduce if config.normalise_advantages else None,
        )
        stats = {**memory_stats, **value_stats}
        return loss, {**metrics, **{name: value.detach() for name, value in stats.items()}}

    def compute_gradients(self, batch: Unroll) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        """Compute a batch's metrics and the gradients of the parameters."""
        loss, metrics = (self.compiled_loss or self.loss)(batch)
        if self._targets is not None:
            self._targets.copy_(metrics.pop(TARGET_MOMENTS))
        for parameter in self._parameters:
            parameter.grad = None
        # Seeded with NaN if the loss is not finite, so that the norm of the gradients is NaN, too.
        loss.backward(1 + 0 * loss.detach())
        return metrics, [parameter.grad for parameter in self._parameters]

    def backward(self, batch: Unroll) -> PartialUpdate:
        """Leave the gradients of a batch, or of some of its environments, in the parameters' `grad`.

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
        targets = None if self._targets is None else self._targets.clone()
        replayed = (0, 0) if batch.replayed is None else ages(batch.replayed, self.version)
        part = PartialUpdate(
            metrics,
            0,
            batch.version,
            Episodes(),
            targets=targets,
            replayed=replayed,
            num_learned=batch.num_steps,
        )
        counted = batch if batch.counted == "itself" else batch.counted
        if counted is None:
            return part
        # The last observation is the first of the next unroll.
        normaliser = self.agent.normaliser
        obs_moments = normaliser.moments(counted.observation[:-1]) if normaliser else None
        returns = None
        if self.config.normalise_rewards:
            returns = merge(torch.zeros_like(self._returns), *counted.episodes.return_moments).numpy()
        return replace(
            part,
            num_steps=counted.num_steps,
            episodes=counted.episodes,
            moments=obs_moments,
            returns=returns,
        )

    def apply_gradients(self, gradients: Sequence[Tensor], grad_norm: Tensor) -> None:
        """Clip the gradients and change the weights, unless this or an earlier update was not finite."""
        parameters = [p for p in self._parameters if p.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        # as torch's clip_grad_norm_
        clipping = (self.config.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        self.finite.logical_and_(grad_norm.isfinite())
        arithmetic = getattr(self.ops, self.config.optimizer)
        self.optimizer.step_if_finite(self.finite, self._rate, clipping, arithmetic)

    def step(self, partial_updates: Sequence[PartialUpdate]) -> Mapping[str, float]:
        """Apply the gradients in `grad`, already summed over the partial updates of one batch, and update the
        running statistics of observations, returns and value targets; return the metrics, as `update` does.
        """
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate  # not read, but saved with the optimizer's state
        self._rate.fill_(rate)
        norm_metric = self._executor.step([p.grad for p in self._parameters if p.grad is not None])
        if self.agent.normaliser:
            obs_moments = [partial.moments for partial in partial_updates if partial.moments is not None]
            self.agent.normaliser.update_stats(obs_moments)
        if self.agent.value_normaliser is not None:
            targets = [partial.targets for partial in partial_updates if partial.targets is not None]
            self.agent.value_normaliser.update_stats(targets, self.agent.baseline, self.finite)
        returns = [partial.returns for partial in partial_updates if partial.returns is not None]
        self._update_return_stats(returns)
        divisor_metric = {} if self._reward_divisor is None else {"reward_divisor": self.reward_divisor}
        lag = self.version - min(partial.version for partial in partial_updates)
        num_replayed, age = map(sum, zip(*(partial.replayed for partial in partial_updates), strict=True))
        replay_metric = {"replay_age": age / num_replayed} if num_replayed else {}
        num_learned = sum(partial.num_learned for partial in partial_updates)
        num_fresh = sum(partial.num_steps for partial in partial_updates)

        def metrics() -> dict[str, float]:
            return {
                **_combine([partial.metrics for partial in partial_updates]),
                **norm_metric,
                "clipped_grad_share": float(norm_metric["grad_norm"] > self.config.max_grad_norm),
                "learning_rate": rate,
                "policy_lag": lag,
                "num_learned": num_learned,
                "num_fresh": num_fresh,
                **divisor_metric,
                **replay_metric,
            }

        reported = self._executor.report(metrics)
        self.steps += num_fresh
        self.version += 1
        return reported

    def _update_return_stats(self, several: Sequence[NDArray[np.float64]]) -> None:
        """Merge moments `[3, 1]` of returns, and divide rewards by their new standard deviation."""
        self._returns = merge(self._returns, *several)
        self.set_reward_divisor(self.reward_divisor)

    @property
    def reward_divisor(self) -> float:
        """Standard deviation of the discounted returns so far, by which `normalise_rewards` divides."""
        return std(self._returns)

    def set_reward_divisor(self, divisor: float) -> None:
        """Divide the rewards of later batches by `divisor`; no effect without `normalise_rewards`."""
        if self._reward_divisor is not None:
            self._reward_divisor.fill_(divisor)

    def learning_rate(self) -> float:
        """Return the next update's learning rate: annealed to 0, and corrected for RMSProp's start from 0.

        A mean square that starts from zero makes the first steps up to ten times too long, and the policy may
        be nearly deterministic before it has learned anything. The factor is Adam's; it is 0.93 after 200
        updates. Absent in the published code and with `rmsprop_corrected=False`.
        """
        config = self.config
        remaining = 1.0 - min(self.steps, config.total_steps) / config.total_steps
        correction = (1.0 - config.rmsprop_alpha ** (self.version + 1)) ** 0.5
        corrected = config.optimizer == "rmsprop" and config.rmsprop_corrected
        return config.learning_rate * remaining * (correction if corrected else 1.0)

    def synchronize(self) -> None:
        """Wait until all updates are done. Raises NonFiniteError if the last one was not finite."""
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
        self.set_reward_divisor(self.reward_divisor)
