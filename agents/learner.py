"""The learner: one V-trace update from one batch of unrolls."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .cuda.graphs import ALONE, Captured
from .cuda.late import Late, send
from .losses import baseline_loss, policy_entropy, policy_gradient_loss
from .network import REWARD_LIMIT, Agent, Bptt
from .rmsprop import RMSprop, rmsprop_if
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
    rmsprop_corrected: bool = True
    """whether the first steps are as long as later ones: the published code's are up to ten times as long"""
    bptt: Bptt = "full"


@dataclass(frozen=True)
class Part:
    """What came of some columns of a batch: all of it, or one process's share."""

    metrics: Mapping[str, float]
    num_steps: int
    version: int
    episodes: Episodes


@dataclass(frozen=True)
class _Enqueued:
    """An update that the device has not been seen to finish, and how to undo what the host counted."""

    metrics: Late
    batch: Unroll | None
    steps: int
    version: int


class Learner:
    """Owns the agent's weights, the optimizer and the count of agent steps learned from.

    On a GPU an update is enqueued, and nobody waits for it: its metrics arrive when somebody looks at them,
    and while it runs the next one may be enqueued. One that is not finite changes nothing there either, nor
    does any after it, until the host sees it and raises NonFiniteError: at the next update or look. With
    `capture` each half of an update, `backward` and `step`, runs as one CUDA graph there.

    With `compile`, on any device, loss, gradients and step are what `torch.compile` makes of them; where it
    cannot, a warning says so and they are computed as they stand.
    """

    def __init__(
        self, agent: Agent, config: LearnerConfig, capture: bool = True, compile: bool = False
    ) -> None:
        self.agent = agent
        self.config = config
        self.optimizer = RMSprop(
            agent.parameters(), lr=config.learning_rate, alpha=config.rmsprop_alpha, eps=config.rmsprop_eps
        )
        self.steps = 0
        self.version = 0
        """updates done, or enqueued"""
        device = agent.policy.weight.device
        self._waits = not _enqueues(device)
        self._captures = capture and not self._waits
        self._compiles = compile
        self._evaluate = torch.compile(self.loss, dynamic=False) if compile else self.loss
        self._step = torch.compile(rmsprop_if, dynamic=False) if compile else rmsprop_if
        self._ready: dict[Callable[..., Any], Callable[..., Any]] = {}
        """what runs in place of the halves of an update"""
        self._sound = torch.ones((), dtype=torch.bool, device=device)
        """whether all updates so far were finite"""
        self._lr = torch.zeros((), device=device)
        self._batch: Unroll | None = None
        self._enqueued: _Enqueued | None = None

    def learning_rate(self) -> float:
        """Of the next update: annealed linearly to zero, and corrected for RMSProp's start from zero.

        A mean square that starts from zero makes the first steps up to ten times too long, and the policy may
        be nearly deterministic before it has learned anything. The factor is Adam's; it is 0.93 after 200
        updates. The published code has none, nor has `rmsprop_corrected=False`.
        """
        config = self.config
        remaining = 1.0 - min(self.steps, config.total_steps) / config.total_steps
        correction = (1.0 - config.rmsprop_alpha ** (self.version + 1)) ** 0.5
        return config.learning_rate * remaining * (correction if config.rmsprop_corrected else 1.0)

    def update(self, batch: Unroll) -> Mapping[str, float]:
        """Learn from one batch and return the metrics (agents/README.md says what each means).

        Raises NonFiniteError if a loss or gradient is not finite; then no weight has changed.
        """
        return self.step([self.backward(batch)])

    def backward(self, batch: Unroll) -> Part:
        """Leave the gradients of one batch, or of some of its columns, in the parameters' `grad`.

        On a GPU the next call may write over them, and `grad` may be changed or replaced before `step`.
        """
        metrics, gradients = self._run(self._differentiate, batch.tensors())
        for parameter, gradient in zip(self.agent.parameters(), gradients, strict=True):
            parameter.grad = gradient
        values: Mapping[str, float]
        if self._waits:
            values = {name: float(value) for name, value in metrics.items()}
        else:
            values, self._batch = send(metrics), batch
        return Part(values, batch.num_steps, batch.version, batch.episodes)

    def step(self, parts: Sequence[Part]) -> Mapping[str, float]:
        """Change the weights by the gradients in `grad`, the sum over all parts of one batch."""
        lr = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self._lr.fill_(lr)
        gradients = [p.grad for p in self.agent.parameters() if p.grad is not None]
        grad_norm = self._run(self._change, gradients)

        steps, version = self.steps, self.version
        lag = version - min(part.version for part in parts)
        self.steps += sum(part.num_steps for part in parts)
        self.version += 1
        norm = {"grad_norm": float(grad_norm)} if self._waits else send({"grad_norm": grad_norm})

        def metrics() -> dict[str, float]:
            if self._enqueued is not None and self._enqueued.version == version:
                self.settle()
            together = _together([part.metrics for part in parts])
            return {**together, **norm, "learning_rate": lr, "policy_lag": lag}

        if self._waits:
            return metrics()
        update = _Enqueued(Late(metrics), self._batch, steps, version)
        previous, self._enqueued = self._enqueued, update
        self._check(previous)
        return update.metrics

    def settle(self) -> None:
        """Wait for the update enqueued last, if any. Raises NonFiniteError if it was not finite."""
        enqueued, self._enqueued = self._enqueued, None
        self._check(enqueued)

    def _check(self, update: _Enqueued | None) -> None:
        """Wait for an update; if it was not finite, forget it and what came after it, and say why."""
        if update is None or math.isfinite(update.metrics["grad_norm"]):
            return
        self.steps, self.version, self._enqueued = update.steps, update.version, None
        self._waits = True  # once more, looking at every number; nothing changes while it is not sound
        try:
            if update.batch is not None:
                _, gradients = self._differentiate(*update.batch.tensors())
                self._change(*(gradient for gradient in gradients if gradient is not None))
            raise NonFiniteError(f"update {self.version + 1} was not finite, but its repetition is")
        finally:
            self._waits = False
            self._sound.fill_(True)

    def _run(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        """`function(*inputs)`; from the first call on compiled and as a CUDA graph, where that is wanted."""
        if function not in self._ready:
            self._sound.fill_(False)  # running it to warm up must not change a weight
            try:
                self._ready[function] = self._prepare(function, inputs)
            finally:
                self._sound.fill_(True)
        return self._ready[function](*inputs)

    def _prepare(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[..., Any]:
        if self._compiles:
            copies = [x.clone() for x in inputs]  # a step that changes no weight zeroes gradients
            try:
                with ALONE, warnings.catch_warnings():
                    # Its advice is not for users: TF32, say, would part the learner from its actors.
                    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
                    function(*copies)
                # The compiler leaves cycles that hold nodes of the gradients' graph, each bound to the stream
                # that it was made on: a capture on another stream would fail.
                gc.collect()
            except NonFiniteError:
                raise
            except RuntimeError as error:
                reason = str(error).strip().split("\n")[0]
                warnings.warn(f"torch.compile fails here; the learner runs without: {reason}", stacklevel=2)
                self._evaluate, self._step, self._compiles = self.loss, rmsprop_if, False
        return Captured(function, inputs) if self._captures else function

    def _differentiate(self, *tensors: Tensor) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        """The metrics of a batch, given as `Unroll.tensors`, and the gradients of the parameters."""
        batch = Unroll.of(tensors)
        loss, metrics = self._evaluate(batch)
        if self._waits and not torch.isfinite(loss):
            self._fail({**_named_inputs(batch), **dict(self.agent.named_parameters()), **metrics}, "loss")
        self.optimizer.zero_grad(set_to_none=True)
        # The gradients of a loss that is not finite shall not be either: zero times infinity is NaN.
        loss.backward(1 + 0 * loss.detach())
        return metrics, [parameter.grad for parameter in self.agent.parameters()]

    def _change(self, *gradients: Tensor) -> Tensor:
        """Change the weights by their gradients, unless this or an earlier update was not finite.

        Returns the global norm of the gradients, a scalar.
        """
        parameters = [p for p in self.agent.parameters() if p.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        grad_norm = nn.utils.get_total_norm(gradients)
        if self._waits and not torch.isfinite(grad_norm):
            named = {f"gradient of {n}": p.grad for n, p in self.agent.named_parameters()}
            self._fail({n: g for n, g in named.items() if g is not None}, "gradient norm")
        nn.utils.clip_grads_with_norm_(parameters, self.config.max_grad_norm, grad_norm)
        self._sound.logical_and_(grad_norm.isfinite())
        self.optimizer.step_if(self._sound, self._lr, self._step)
        return grad_norm

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
            "forced_share": batch.forced.float().mean(),
            **self.agent.core.stats,
        }
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _fail(self, tensors: Mapping[str, Tensor], what: str) -> None:
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise NonFiniteError(f"{what} of update {self.version + 1} is not finite: first in {name}")
        raise NonFiniteError(f"{what} of update {self.version + 1} overflowed")

    def state_dict(self) -> dict[str, Any]:
        """All but the weights, as plain types and tensors. Raises NonFiniteError as `settle` does."""
        self.settle()
        return {
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "version": self.version,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self._ready.clear()  # graphs know where the old state was
        self._enqueued = None
        self.steps = state["steps"]
        self.version = state["version"]


def _enqueues(device: torch.device) -> bool:
    """Whether work on this device goes on while the host does something else."""
    return device.type == "cuda"


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
